#include "cli/run_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <new>
#include <utility>

#include "bench/peer_llama.h"
#include "cli/auto_profile.h"
#include "cli/generation.h"
#include "cli/run_record.h"
#include "core/error.h"
#include "kv/kv_file.h"

namespace winnow {
namespace {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  GenerationFlags generation;
  std::string question;
  std::string prompt_file;
  std::string save_kv;
  std::string load_kv;
  std::string peer;
  std::string report = "summary";
  bool quiet = false;
};

std::string Question(const RunFlags& flags) {
  if (!flags.prompt_file.empty() && !flags.question.empty()) {
    Throw(ErrorKind::kUsage, "-p and --prompt-file exclude each other");
  }
  if (!flags.prompt_file.empty()) return ReadTextFile(flags.prompt_file);
  return ReadQuestion(flags.question);
}

// A file of pages is a whole prompt, and its request ends with the first token.
void CheckKvFiles(const RunFlags& flags) {
  if (!flags.save_kv.empty() && flags.generation.max_tokens > 0) {
    Throw(ErrorKind::kUsage,
          "--save-kv ends with the first token: -n is for the command that goes on with --load-kv");
  }
  for (const std::string& file : flags.prompt.files) {
    std::error_code error;  // there may be no such file yet
    if (!flags.save_kv.empty() && std::filesystem::equivalent(flags.save_kv, file, error)) {
      Throw(ErrorKind::kUsage, "--save-kv {}: that is a document of -f", flags.save_kv);
    }
  }
  if (flags.load_kv.empty()) return;
  const PromptFlags& prompt = flags.prompt;
  const std::pair<const char*, bool> given[] = {
      {"--save-kv", !flags.save_kv.empty()},
      {"-p", !flags.question.empty()},
      {"--prompt-file", !flags.prompt_file.empty()},
      {"-f", !prompt.files.empty()},
      {"--protect", !prompt.protect.empty()},
      {"--strict", prompt.strict},
      {"--system", !prompt.system.empty()},
      {"--chunk-tokens", prompt.chunk_tokens > 0},
      {"--no-chat-template", prompt.no_chat_template},
      {"--chat-template", !prompt.chat_template_file.empty()},
      {"--peer", !flags.peer.empty()}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    Throw(ErrorKind::kUsage, "--load-kv goes on with the prompt of its file, as it was read: {} {}",
          name, "cannot be given with it");
  }
}

// llama.cpp with its defaults on the same tokens, and as many decode steps as Winnow made.
PeerRecord RunPeer(const LoadedModel& loaded, const std::string& kv_type,
                   const std::vector<TokenId>& prompt, const RequestResult& ours) {
  PeerModel model(loaded.path, loaded.pool->size(), loaded.pool.get());
  PeerOptions options;
  options.context_tokens = static_cast<int64_t>(prompt.size() + ours.tokens.size()) + 1;
  options.kv_dtype = ParseDType(kv_type);
  PeerLlama peer(&model, options);
  PeerRecord record;
  record.prompt_tokens = static_cast<int64_t>(prompt.size());
  const PeerPrefill prefill = peer.Prefill(0, prompt);
  record.ttft_seconds = prefill.seconds;
  record.decode_steps = static_cast<int64_t>(ours.tokens.size()) - 1;
  if (record.decode_steps > 0) {
    const TokenId first[] = {prefill.next_token};
    record.decode_seconds = peer.Decode(first, record.decode_steps).seconds;
  }
  record.buffer_bytes = model.weight_bytes() + peer.total_bytes();
  record.kv_bytes = peer.kv_bytes();
  return record;
}

// Adds the peer's side to `record`. If the peer fails, the answer keeps its record: the reason goes
// into it and to stderr, and what is returned is the exit code of it.
int AddPeer(const LoadedModel& loaded, const std::string& kv_type,
            const std::vector<TokenId>& prompt, RunRecord& record) {
  ErrorKind kind = ErrorKind::kResource;
  try {
    record.peer = RunPeer(loaded, kv_type, prompt, record.result);
    return 0;
  } catch (const Error& error) {
    kind = error.kind();
    record.peer_error = error.what();
  } catch (const std::bad_alloc&) {
    record.peer_error = "out of memory";
  }
  Warn("llama.cpp failed: " + record.peer_error);
  return DescribeError(kind).exit_code;
}

void PrintNotes(const RunFlags& flags, const Prompt& prompt, const Tokenizer& tokenizer) {
  if (flags.quiet) return;
  if (!prompt.used_chat_template && !tokenizer.has_chat_template()) {
    Warn("the model has no chat template: plain completion");
  }
}

// What is to be read. Of a file to go on with the prompt's tokens are known.
struct RunInput {
  std::string question;
  DocumentSet documents;
  Prompt prompt;
};

RunInput ReadInput(const RunFlags& flags) {
  CheckKvFiles(flags);
  RunInput input;
  if (!flags.load_kv.empty()) {
    input.prompt.tokens = InspectKvFile(flags.load_kv).header.tokens;
    return input;
  }
  input.question = Question(flags);
  input.documents = ReadDocuments(flags.prompt);
  if (input.question.empty() && input.documents.documents.empty()) {
    Throw(ErrorKind::kInput, "the prompt is empty: give a question with -p, documents with -f");
  }
  return input;
}

Request ToRequest(const RunFlags& flags, const Prompt& prompt, const Engine& engine) {
  Request request =
      MakeRequest(flags.generation, prompt.tokens, prompt.spans, engine.context_tokens());
  if (!flags.load_kv.empty()) request.tokens.clear();  // the engine takes them from the file
  request.keep_tables = flags.report == "full";
  request.save_kv = flags.save_kv;
  request.load_kv = flags.load_kv;
  return request;
}

int Run(const RunFlags& flags, bool json) {
  Validate(flags.generation);
  auto [question, set, prompt] = ReadInput(flags);
  LoadedModel loaded =
      LoadModel(flags.model, {flags.generation.arm}, ReadChatTemplate(flags.prompt));
  if (flags.load_kv.empty()) {
    prompt = BuildPrompt(*loaded.tokenizer, set.documents, question,
                         ToPromptOptions(flags.prompt, set.documents, {flags.generation.arm}));
    PrintNotes(flags, prompt, *loaded.tokenizer);
  }

  Output output;
  RunRecord record;
  int signal = 0;
  {
    ProgressBar progress(!flags.quiet);
    const InterruptScope interrupts;
    record = MakeRecord(loaded, flags.generation, prompt,
                        Generate(*loaded.engine, ToRequest(flags, prompt, *loaded.engine),
                                 json ? nullptr : &output, progress, interrupts));
    signal = interrupts.Pending();
  }
  record.skipped = std::move(set.skipped);
  if (!json) output.Write("\n");
  int exit_code = 0;
  if (record.result.finish_reason == FinishReason::kFailed) {
    Warn(record.result.error);
    exit_code = DescribeError(record.result.error_kind).exit_code;
  } else if (!flags.peer.empty() && signal == 0 && !output.failed()) {
    exit_code = AddPeer(loaded, flags.model.kv_type, prompt.tokens, record);
  }
  if (json) {
    nlohmann::ordered_json object = {{"schema", "winnow.run/1"}};
    object.update(
        ToJson(record, flags.report == "full" ? LedgerDetail::kFull : LedgerDetail::kSummary));
    output.Write(DumpJson(object, /*indent=*/true) + "\n");
  } else if (!flags.quiet && !output.failed()) {
    WriteErrorLines("\n" + FormatTable(record));
  }
  if (signal != 0) return 128 + signal;
  return output.ExitCode(exit_code);
}

void AddKvFileFlags(CLI::App& command, RunFlags& flags) {
  const std::string group = "Prefill and decode apart";
  command
      .add_option("--save-kv", flags.save_kv,
                  "Read the prompt, write its keys and values, pruned or not, to this file (in "
                  "place of one that is there), and end with the first token")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option("--load-kv", flags.load_kv,
                  "Answer the prompt whose keys and values --save-kv wrote, without reading it")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
}

}  // namespace

void AddRunCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Answer one question, over documents if given");
  AddQuestionFlag(*command, flags->question);
  command->add_option("--prompt-file", flags->prompt_file, "Read the question from a file")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group("Prompt");
  AddPromptFlags(*command, flags->prompt);
  AddModelFlags(*command, flags->model);
  AddGenerationFlags(*command, flags->generation);
  AddAutoFlags(*command, flags->model);
  AddKvFileFlags(*command, *flags);
  AddJsonFlag(*command, context);
  command->add_flag("-q,--quiet", flags->quiet, "No progress bar, no notes, no closing table")
      ->group("Output");
  command
      ->add_option("--report", flags->report,
                   "How much of a sparse answer's account --json holds: 'summary', or 'full' (also "
                   "by layer and KV head, and by step)")
      ->type_name("DETAIL")
      ->transform(OneOf("detail", {"summary", "full"}))
      ->capture_default_str()
      ->group("Output");
  command
      ->add_option("--peer", flags->peer,
                   "Afterwards run 'llama.cpp' on the same prompt and show both in the table")
      ->type_name("NAME")
      ->transform(OneOf("peer", PeerNames()))
      ->group("Output");
  command->footer(
      "Example: ask about every text file below notes/\n"
      "  winnow run -m model.gguf -f notes/ -p \"When does the contract end?\"");
  command->callback(
      [flags, &context] { context.run = [flags, &context] { return Run(*flags, context.json); }; });
}

}  // namespace winnow
