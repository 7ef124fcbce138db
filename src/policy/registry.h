// The policies of one kind by name.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policy/nearest_name.h"

namespace winnow {

// `Make`: the type of the functions that make a policy.
template <class Make>
class Registry {
 public:
  struct Entry {
    std::string name;
    Make* make;
  };

  // `kind` is how messages name the policies, such as "selector".
  Registry(std::string kind, std::vector<Entry> entries)
      : kind_(std::move(kind)), entries_(std::move(entries)) {}

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    names.reserve(entries_.size());
    for (const Entry& entry : entries_) names.push_back(entry.name);
    return names;
  }

  // Throws Error(kUsage) for an unknown name, offering the nearest.
  Make* Find(std::string_view name) const {
    for (const Entry& entry : entries_) {
      if (entry.name == name) return entry.make;
    }
    Throw(ErrorKind::kUsage, "{}", UnknownName(kind_, name, Names()));
  }

 private:
  std::string kind_;
  std::vector<Entry> entries_;
};

}  // namespace winnow
