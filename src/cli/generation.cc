#include "cli/generation.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "policy/arm.h"
#include "policy/nearest_name.h"
#include "text/read_file.h"
#include "text/utf8.h"

namespace winnow {

void AddNoChatTemplateFlag(CLI::App& command, bool& flag, const std::string& group) {
  command
      .add_flag("--no-chat-template", flag,
                "Plain completion, even if the model has a chat template")
      ->group(group);
}

void AddQuestionFlag(CLI::App& command, std::string& question) {
  command
      .add_option("-p,--prompt", question, "The question, or '-' to read it from standard input")
      ->type_name("TEXT")
      ->check(NotEmpty())
      ->group("Prompt");
}

void AddPromptFlags(CLI::App& command, PromptFlags& flags) {
  const std::string group = "Prompt";
  command
      .add_option("-f,--file", flags.files,
                  "Documents to read: UTF-8 text files, or folders of them (repeatable)")
      ->type_name("FILE|DIR")
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option(
          "--protect", flags.protect,
          "Never drop this document, or these lines of it, where an arm prunes (repeatable)")
      ->type_name("FILE[:FIRST-LAST]")
      ->allow_extra_args(false)
      ->check(NotEmpty())
      ->group(group);
  command
      .add_flag("--strict", flags.strict, "Refuse files that are not text instead of skipping them")
      ->group(group);
  command.add_option("--system", flags.system, "System message; '' is the same as none")
      ->type_name("TEXT")
      ->group(group);
  command
      .add_option("--chunk-tokens", flags.chunk_tokens,
                  fmt::format("Longest chunk that documents are split into, in tokens; by default "
                              "what the arm says, or {}",
                              PromptOptions{}.chunk_tokens))
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 20))
      ->group(group);
  AddNoChatTemplateFlag(command, flags.no_chat_template, group);
  command
      .add_option("--chat-template", flags.chat_template_file,
                  "File with a Jinja chat template to use instead of the model's")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->group(group);
}

void AddGenerationFlags(CLI::App& command, GenerationFlags& flags) {
  const std::string group = "Generation";
  command
      .add_option("-n,--max-tokens", flags.max_tokens,
                  fmt::format("Longest answer in tokens; by default {}, or what the context leaves",
                              kDefaultMaxTokens))
      ->type_name("TOKENS")
      ->check(Between(1, 1 << 30))
      ->group(group);
  command
      .add_option("--stop", flags.stop,
                  "End the answer where this text would appear (repeatable, one text each)")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->check(NotEmpty())
      ->group(group);
  command
      .add_option(
          "--arm", flags.arm,
          "How the context is read: auto (what the model's profile says, dense where that does not "
          "pay), dense (all of it), or policies such as select=sketch,residual=sketch "
          "(docs/cli.md lists them)")
      ->type_name("ARM")
      ->capture_default_str()
      ->group(group);

  const std::string sampler = "Sampling (greedy unless --temp is above 0)";
  SamplingParams& sampling = flags.sampling;
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    return command.add_option(name, value, help)
        ->type_name(type)
        ->capture_default_str()
        ->group(sampler);
  };
  add("--temp", sampling.temperature, "X", "Temperature; 0 always takes the likeliest token");
  add("--top-k", sampling.top_k, "N", "Draw from the N likeliest tokens; 0: off")
      ->check(Between(0, 1 << 30));
  add("--top-p", sampling.top_p, "P", "Draw from the likeliest tokens that hold P in all; 1: off");
  add("--min-p", sampling.min_p, "P", "Leave out tokens below P times the likeliest; 0: off");
  add("--seed", sampling.seed, "N", "Seed: the same one gives the same answer")
      ->check(Between(0, std::numeric_limits<uint32_t>::max()));
  add("--repeat-penalty", sampling.repeat_penalty, "X", "Divides logits of recent tokens; 1: off");
  command
      .add_option("--repeat-last-n", sampling.penalty_last_n,
                  "Tokens that the penalties look back on; -1: all of them")
      ->type_name("N")
      ->check(Between(-1, 1 << 30))
      ->capture_default_str()
      ->group(sampler);
  add("--frequency-penalty", sampling.frequency_penalty, "X",
      "Subtracted for each recent appearance; 0: off");
  add("--presence-penalty", sampling.presence_penalty, "X",
      "Subtracted once from recent tokens; 0: off");
}

void Validate(const GenerationFlags& flags) {
  ParseArm(flags.arm);
  for (const std::string& stop : flags.stop) CheckUtf8(stop, "the stop string");
  flags.sampling.Validate();
}

namespace {

// "notes.txt:10-20": lines from 1, both ends included; without them, the whole document.
struct LineRange {
  std::string file;
  int64_t first = 1;
  int64_t last = std::numeric_limits<int64_t>::max();
};

// Whether a path given by the user stands for the document: a file, or a folder above it.
bool Names(const std::string& path, const Document& document) {
  if (document.id == path) return true;
  const bool slash = path.ends_with('/');
  return document.id.starts_with(slash ? path : path + "/");
}

// Byte at which line `line` (from 1) of the text begins; its size if there are fewer.
int64_t LineBegin(std::string_view text, int64_t line) {
  size_t at = 0;
  for (; line > 1; --line) {
    at = text.find('\n', at);
    if (at == std::string_view::npos) return std::ssize(text);
    ++at;
  }
  return static_cast<int64_t>(at);
}

// A name may end in what looks like lines: the documents decide.
LineRange ParseLineRange(const std::string& text, const std::vector<Document>& documents) {
  const auto is_read = [&](const std::string& file) {
    return std::ranges::any_of(documents, [&](const Document& d) { return Names(file, d); });
  };
  if (is_read(text)) return {.file = text};
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {.file = text};
  LineRange range{.file = text.substr(0, colon)};
  const std::string lines = text.substr(colon + 1);
  const size_t dash = lines.find('-');
  const auto line = [&](const std::string& digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value < 1) {
      Throw(ErrorKind::kUsage,
            "--protect {}: lines are given as FIRST-LAST, counted from 1, such as {}:10-20", text,
            range.file);
    }
    return value;
  };
  range.first = line(lines.substr(0, dash));
  range.last = dash == std::string::npos ? range.first : line(lines.substr(dash + 1));
  if (range.last < range.first) {
    Throw(ErrorKind::kUsage, "--protect {}: the last line comes before the first", text);
  }
  return range;
}

}  // namespace

DocumentSet ReadDocuments(const PromptFlags& flags) {
  DocumentSet set = LoadDocuments(flags.files, flags.strict);
  for (const SkippedFile& file : set.skipped) {
    Warn(fmt::format("skipped {}: {}", file.path, file.reason));
  }
  if (!flags.files.empty() && set.documents.empty()) {
    const std::string reason = set.skipped.empty() ? std::string("no files found")
                                                   : fmt::format("{}: {}", set.skipped.front().path,
                                                                 set.skipped.front().reason);
    Throw(ErrorKind::kInput, "nothing to read in the files given with -f ({})", reason);
  }
  for (const std::string& text : flags.protect) {
    const LineRange range = ParseLineRange(text, set.documents);
    const bool is_read = std::ranges::any_of(
        set.documents, [&](const Document& document) { return Names(range.file, document); });
    if (is_read && range.first > 1 &&
        std::ranges::none_of(set.documents, [&](const Document& document) {
          return Names(range.file, document) &&
                 LineBegin(document.text, range.first) < std::ssize(document.text);
        })) {
      Throw(ErrorKind::kInput, "--protect {}: the document ends before line {}", text, range.first);
    }
    if (is_read) continue;
    std::vector<std::string> known;
    for (const Document& document : set.documents) known.push_back(document.id);
    Throw(ErrorKind::kInput, "--protect {}: no such document is read with -f{}", text,
          DidYouMean(range.file, known));
  }
  return set;
}

std::string ReadTextFile(const std::string& path) {
  std::string text;
  const std::string name = path == "-" ? "standard input" : path;
  if (const int error = ReadFile(path, &text); error != 0) {
    Throw(ErrorKind::kInput, "{}: cannot be read: {}", name, std::strerror(error));
  }
  CheckUtf8(text, name);
  text.erase(0, text.size() - WithoutByteOrderMark(text).size());
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string ReadQuestion(const std::string& flag) {
  if (flag == "-") return ReadTextFile("-");
  CheckUtf8(flag, "the question");
  return flag;
}

std::string ReadChatTemplate(const PromptFlags& flags) {
  if (flags.no_chat_template && !flags.chat_template_file.empty()) {
    Throw(ErrorKind::kUsage, "--chat-template and --no-chat-template exclude each other");
  }
  return flags.chat_template_file.empty() ? "" : ReadTextFile(flags.chat_template_file);
}

PromptOptions ToPromptOptions(const PromptFlags& flags, const std::vector<Document>& documents,
                              const std::vector<std::string>& arms) {
  PromptOptions options{.system = flags.system, .chat_template = !flags.no_chat_template};
  const int of_arms = ArmChunkTokens(arms);
  if (flags.chunk_tokens > 0 && of_arms > 0 && flags.chunk_tokens != of_arms) {
    Throw(ErrorKind::kUsage,
          "--chunk-tokens {} contradicts the arm, which prunes chunks of {}: give the arm chunk={}",
          flags.chunk_tokens, of_arms, flags.chunk_tokens);
  }
  if (flags.chunk_tokens > 0) options.chunk_tokens = flags.chunk_tokens;
  if (of_arms > 0) options.chunk_tokens = of_arms;
  for (const std::string& text : flags.protect) {
    const LineRange range = ParseLineRange(text, documents);
    for (const Document& document : documents) {
      if (!Names(range.file, document)) continue;
      const bool to_the_end = range.last == std::numeric_limits<int64_t>::max();
      options.protect.push_back({.document = document.id,
                                 .begin = LineBegin(document.text, range.first),
                                 .end = to_the_end ? std::ssize(document.text)
                                                   : LineBegin(document.text, range.last + 1)});
    }
  }
  return options;
}

Request MakeRequest(const GenerationFlags& flags, std::vector<TokenId> tokens,
                    std::vector<Span> spans, int64_t context_tokens) {
  Request request;
  request.max_new_tokens = flags.max_tokens;
  if (flags.max_tokens == 0) {
    const int64_t room = context_tokens - static_cast<int64_t>(tokens.size());
    request.max_new_tokens = std::clamp<int64_t>(room, 1, kDefaultMaxTokens);
  }
  request.tokens = std::move(tokens);
  request.spans = std::move(spans);
  request.sampling = flags.sampling;
  request.stop = flags.stop;
  request.arm = flags.arm;
  return request;
}

RequestResult Generate(Engine& engine, Request request, Output* stream, ProgressBar& progress,
                       const InterruptScope& interrupts) {
  request.on_prefill = [&progress](const PrefillProgress& p) { progress.Update(p); };
  request.on_text = [&progress, stream](std::string_view text) {
    progress.Clear();
    if (stream != nullptr) stream->Write(text);
  };
  const RequestId id = engine.Submit(std::move(request));
  std::optional<RequestResult> result;
  while (!result.has_value()) {
    if (interrupts.Pending() != 0 || (stream != nullptr && stream->failed())) engine.Cancel(id);
    const bool stepped = engine.Step();
    result = engine.TakeResult(id);
    WINNOW_CHECK(stepped || result.has_value(), "request {} is neither running nor finished", id);
  }
  progress.Clear();
  return *std::move(result);
}

}  // namespace winnow
