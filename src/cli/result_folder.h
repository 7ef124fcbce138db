// The folder of --out: made before anything is computed, and never one that holds results already.
#pragma once

#include <string>

namespace winnow {

// Makes `path` unless it is empty. Throws Error(kUsage) if it holds the file `name` already, whose
// kind the message calls `what` ("evaluation"), Error(kResource) if it cannot be made.
void MakeResultFolder(const std::string& path, const std::string& name, const std::string& what);

// Writes a file of the folder. Throws Error(kResource).
void WriteResultFile(const std::string& folder, const std::string& name, const std::string& text);

}  // namespace winnow
