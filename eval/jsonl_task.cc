#include "eval/jsonl_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "eval/filler.h"
#include "text/read_file.h"

namespace winnow {
namespace {

using nlohmann::json;

// One line of the file; errors name it.
class Row {
 public:
  Row(std::string where, const std::string& line) : where_(std::move(where)) {
    row_ = json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (row_.is_discarded()) Throw(ErrorKind::kInput, "{}: not a line of JSON", where_);
    if (!row_.is_object()) Throw(ErrorKind::kInput, "{}: not a JSON object", where_);
  }

  bool Has(const char* key) const { return row_.contains(key) && !row_.at(key).is_null(); }

  std::string Text(const char* key) const {
    Require(key);
    if (!row_.at(key).is_string()) Throw(ErrorKind::kInput, "{}: '{}' is not a text", where_, key);
    return row_.at(key).get<std::string>();
  }
  std::string TextOr(const char* key, const std::string& otherwise) const {
    return Has(key) ? Text(key) : otherwise;
  }

  int64_t Count(const char* key) const {
    Require(key);
    const json& value = row_.at(key);
    // Tables of numbers often write whole ones as 50.0.
    const double number = value.is_number() ? value.get<double>() : 0;
    if (number < 1 || number > 1e9 || number != static_cast<double>(static_cast<int64_t>(number))) {
      Throw(ErrorKind::kInput, "{}: '{}' is not a whole number of 1 or more", where_, key);
    }
    return static_cast<int64_t>(number);
  }

  std::vector<std::string> Answers() const { return Texts(Has("answers") ? "answers" : "answer"); }

  // A text or a list of them, none empty.
  std::vector<std::string> Texts(const char* key) const {
    Require(key);
    const json& value = row_.at(key);
    std::vector<std::string> texts;
    for (const json& item : value.is_array() ? value : json::array({value})) {
      if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
        Throw(ErrorKind::kInput, "{}: '{}' is neither a text nor a list of texts, none empty",
              where_, key);
      }
      texts.push_back(item.get<std::string>());
    }
    if (texts.empty()) Throw(ErrorKind::kInput, "{}: '{}' is empty", where_, key);
    return texts;
  }

  const std::string& where() const { return where_; }

 private:
  void Require(const char* key) const {
    if (!Has(key)) Throw(ErrorKind::kInput, "{}: no column '{}'", where_, key);
  }

  std::string where_;
  json row_;
};

Match ReadMatch(const Row& row, const std::string& task) {
  const std::string match = row.TextOr("match", task.starts_with("qa") ? "part" : "all");
  if (match == "all") return Match::kAll;
  if (match == "part") return Match::kPart;
  Throw(ErrorKind::kInput, "{}: 'match' is '{}', neither 'all' nor 'part'", row.where(), match);
}

EvalSample ToSample(const Row& row, const TaskInput& input) {
  const PromptParts parts = {
      .document = "context",
      .context = row.Text("context"),
      .question = row.Text("question"),
      .answer_prefix = row.TextOr("answer_prefix", ""),
      .evidence = row.Has("evidence") ? row.Texts("evidence") : std::vector<std::string>{}};
  EvalSample sample;
  sample.task = row.TextOr("task", "jsonl");
  sample.answers = row.Answers();
  sample.match = ReadMatch(row, sample.task);
  sample.max_new_tokens = row.Count("max_new_tokens");
  sample.cluster = HashBytes(std::as_bytes(std::span(parts.context))).low;
  try {
    static_cast<TaskPrompt&>(sample) = MakeTaskPrompt(input, parts);
  } catch (const Error& error) {
    Throw(error.kind(), "{}: {}", row.where(), error.what());
  }
  return sample;
}

}  // namespace

std::vector<EvalSample> ReadJsonl(const std::string& path, const TaskInput& input,
                                  int64_t context_tokens, int64_t most) {
  std::string bytes;
  if (const int error = ReadFile(path, &bytes); error != 0) {
    Throw(ErrorKind::kInput, "{}: cannot be read: {}", path, std::strerror(error));
  }
  std::vector<EvalSample> samples;
  std::map<std::string, int64_t> taken;  // by task
  int64_t number = 0;
  for (std::string_view rest = WithoutByteOrderMark(bytes); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Row row(fmt::format("{}:{}", path, number), line);
    int64_t& index = taken[row.TextOr("task", "jsonl")];
    if (most > 0 && index >= most) continue;
    EvalSample sample = ToSample(row, input);
    const auto n_prompt = static_cast<int64_t>(sample.tokens.size());
    if (n_prompt + sample.max_new_tokens > context_tokens) {
      Throw(ErrorKind::kInput,
            "{}: the prompt has {} tokens and its answer up to {}: more than the context of {}",
            row.where(), n_prompt, sample.max_new_tokens, context_tokens);
    }
    sample.index = index++;
    samples.push_back(std::move(sample));
  }
  if (samples.empty()) Throw(ErrorKind::kInput, "{}: no samples", path);
  return samples;
}

}  // namespace winnow
