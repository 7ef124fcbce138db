#include "policy/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

template <typename T>
bool Parse(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && at == end;
}

}  // namespace

void Params::Set(std::string key, std::string value) {
  if (Has(key)) Throw(ErrorKind::kUsage, "{}: '{}' is given twice", policy_, key);
  given_.push_back({std::move(key), std::move(value)});
}

bool Params::Has(std::string_view key) const { return Find(key) != nullptr; }

void Params::Imply(const std::string& key, const std::string& value) {
  const std::string* given = Find(key);
  if (given == nullptr) return Set(key, value);
  if (*given != value) {
    Throw(ErrorKind::kUsage, "{}: {}={} contradicts what was given beside it, which means {}",
          policy_, key, *given, value);
  }
}

void Params::Replace(std::string_view key, const std::string& other, const std::string& value) {
  if (Has(other)) {
    Throw(ErrorKind::kUsage, "{}: {} and {} contradict each other: one of them", policy_, key,
          other);
  }
  std::erase_if(given_, [&](const Given& given) { return given.key == key; });
  std::erase_if(asked_, [&](const Given& asked) { return asked.key == key; });
  Set(other, value);
}

const std::string* Params::Find(std::string_view key) const {
  for (const Given& given : given_) {
    if (given.key == key) return &given.value;
  }
  return nullptr;
}

void Params::Record(std::string_view key, const std::string& value) {
  asked_.push_back({std::string(key), value});
}

int64_t Params::Int(std::string_view key, int64_t value, int64_t min, int64_t max) {
  const std::string* given = Find(key);
  if (given != nullptr && (!Parse(*given, &value) || value < min || value > max)) {
    Throw(ErrorKind::kUsage, "{}: {} takes a whole number from {} to {}, not '{}'", policy_, key,
          min, max, *given);
  }
  Record(key, fmt::format("{}", value));
  return value;
}

double Params::Number(std::string_view key, double value, double min, double max) {
  const std::string* given = Find(key);
  if (given != nullptr && (!Parse(*given, &value) || !(value >= min && value <= max))) {
    Throw(ErrorKind::kUsage, "{}: {} takes a number from {} to {}, not '{}'", policy_, key, min,
          max, *given);
  }
  Record(key, fmt::format("{}", value));
  return value;
}

std::string Params::Choice(std::string_view key, std::string_view value,
                           const std::vector<std::string>& choices) {
  const std::string* given = Find(key);
  std::string chosen = given == nullptr ? std::string(value) : *given;
  if (std::find(choices.begin(), choices.end(), chosen) == choices.end()) {
    Throw(ErrorKind::kUsage, "{}: {} is one of {}, not '{}'{}", policy_, key, Joined(choices),
          chosen, DidYouMean(chosen, choices));
  }
  Record(key, chosen);
  return chosen;
}

std::string Params::Text(std::string_view key) {
  const std::string* given = Find(key);
  std::string text = given == nullptr ? "" : *given;
  Record(key, text);
  return text;
}

void Params::Finish() const {
  std::vector<std::string> names;
  for (const Given& asked : asked_) names.push_back(asked.key);
  for (const Given& given : given_) {
    if (std::find(names.begin(), names.end(), given.key) != names.end()) continue;
    Throw(ErrorKind::kUsage, "{} has no parameter '{}'{}; it has {}", policy_, given.key,
          DidYouMean(given.key, names), names.empty() ? "none" : Joined(names));
  }
}

std::string Params::Canonical() const {
  std::string text;
  for (const Given& asked : asked_) {
    if (!asked.value.empty()) text += fmt::format(",{}={}", asked.key, asked.value);
  }
  return text;
}

}  // namespace winnow
