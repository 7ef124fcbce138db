// Which processor this is.
#pragma once

#include <string>

namespace winnow {

// What the system calls the processor, such as "Intel(R) Xeon(R) Platinum 8481C", or "unknown":
// what timings are filed under.
std::string ProcessorName();

}  // namespace winnow
