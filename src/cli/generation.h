// Flags of prompts and of generation that `run` and `chat` share, and the loop that drives the
// engine.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "text/document.h"
#include "text/prompt.h"

namespace winnow {

struct PromptFlags {
  std::vector<std::string> files;
  bool strict = false;
  std::string system;
  int chunk_tokens = 0;  // 0: what the arm asks for
  bool no_chat_template = false;
  std::string chat_template_file;
  std::vector<std::string> protect;  // FILE or FILE:FIRST-LAST
};

void AddNoChatTemplateFlag(CLI::App& command, bool& flag, const std::string& group);

// Adds -p; ReadQuestion reads what it names.
void AddQuestionFlag(CLI::App& command, std::string& question);

// Adds -f, --protect, --strict, --system, --chunk-tokens, --no-chat-template and --chat-template.
void AddPromptFlags(CLI::App& command, PromptFlags& flags);

struct GenerationFlags {
  int64_t max_tokens = 0;  // 0: kDefaultMaxTokens, or what the context leaves if that is less
  SamplingParams sampling;
  std::vector<std::string> stop;
  std::string arm = "auto";
};

inline constexpr int64_t kDefaultMaxTokens = 512;

// Adds -n, --stop, --arm and the sampler's flags.
void AddGenerationFlags(CLI::App& command, GenerationFlags& flags);

// Throws Error(kUsage) for an unknown arm or a sampling parameter out of range, Error(kInput) for a
// stop string that is not UTF-8: before anything is loaded.
void Validate(const GenerationFlags& flags);

// Reads the documents and warns on stderr about each file left out. Throws Error(kInput) as
// LoadDocuments does, if paths were given and nothing readable was found, and for a --protect of
// something that was not read.
DocumentSet ReadDocuments(const PromptFlags& flags);

// A whole file of UTF-8 text, or standard input for "-"; without a byte-order mark and its last
// line end. Throws Error(kInput) if it cannot be read or is not UTF-8.
std::string ReadTextFile(const std::string& path);

// What -p gives: the text itself, or standard input for "-". Throws as ReadTextFile.
std::string ReadQuestion(const std::string& flag);

// The Jinja source of --chat-template, or "" without it. Throws what ReadTextFile throws.
std::string ReadChatTemplate(const PromptFlags& flags);

// For a prompt of these documents, to be read under each of `arms`. A --protect of other documents
// counts for nothing.
PromptOptions ToPromptOptions(const PromptFlags& flags, const std::vector<Document>& documents,
                              const std::vector<std::string>& arms);

// A request for `tokens`, which consist of `spans`, with these flags. Without -n, the default is
// cut to what the context leaves.
Request MakeRequest(const GenerationFlags& flags, std::vector<TokenId> tokens,
                    std::vector<Span> spans, int64_t context_tokens);

// Submits the request and steps the engine until it is finished. Text goes to `stream` as it comes,
// unless null. A pending signal, or a closed output, cancels the request; it may also fail
// (FinishReason::kFailed): what was generated until then is returned. Throws what Engine::Submit
// throws.
RequestResult Generate(Engine& engine, Request request, Output* stream, ProgressBar& progress,
                       const InterruptScope& interrupts);

}  // namespace winnow
