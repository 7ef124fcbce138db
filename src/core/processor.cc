#include "core/processor.h"

#include <fstream>

namespace winnow {

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  std::string name;
  // The lines of the first processor; ARM has no name but numbers.
  for (std::string line; std::getline(in, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (key != "model name" && key != "CPU implementer" && key != "CPU part") continue;
    if (!name.empty()) name += ' ';
    name += line.substr(colon + 2);
  }
  return name.empty() ? "unknown" : name;
}

}  // namespace winnow
