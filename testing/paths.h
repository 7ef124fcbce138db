// Where tests find the default model and the public evaluation text; both may be absent.
#pragma once

#include <optional>
#include <string>

namespace winnow::testing {

// The default model's GGUF in .deps/models, if `make deps` brought it.
std::optional<std::string> DefaultModelPath();

// A file of ../shared/data beside the checkout, if it is there.
std::optional<std::string> SharedDataPath(const std::string& name);

// A fresh folder under the system's temporary folder, removed with its contents at process exit.
std::string TemporaryFolder();

}  // namespace winnow::testing
