// The parameters of one policy in an arm, read by name with their defaults and ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow {

class Params {
 public:
  // `policy` is how messages name it, such as "select=sketch".
  explicit Params(std::string policy) : policy_(std::move(policy)) {}

  const std::string& policy() const { return policy_; }
  // Throws Error(kUsage) if the key was set before.
  void Set(std::string key, std::string value);
  bool Has(std::string_view key) const;
  // Gives `key` this value. Throws Error(kUsage) if it was given another.
  void Imply(const std::string& key, const std::string& value);
  // What was given as `key` is taken as `other` with `value` from here on. Throws Error(kUsage) if
  // `other` was given too.
  void Replace(std::string_view key, const std::string& other, const std::string& value);

  // The value, or the default. Each throws Error(kUsage), naming the policy, the key and what may
  // be given, for a value that is not a number or out of [min, max].
  int64_t Int(std::string_view key, int64_t value, int64_t min, int64_t max);
  double Number(std::string_view key, double value, double min, double max);
  std::string Choice(std::string_view key, std::string_view value,
                     const std::vector<std::string>& choices);
  // Any text; "" if it is not given, and then it is not part of Canonical.
  std::string Text(std::string_view key);

  // Throws Error(kUsage) for a key that nobody asked for, offering the nearest that was.
  void Finish() const;
  // ",key=value" of everything asked for, defaults included, in that order.
  std::string Canonical() const;

 private:
  struct Given {
    std::string key;
    std::string value;
  };
  const std::string* Find(std::string_view key) const;
  void Record(std::string_view key, const std::string& value);

  std::string policy_;
  std::vector<Given> given_;
  std::vector<Given> asked_;  // with the value that holds
};

}  // namespace winnow
