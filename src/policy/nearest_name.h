// Offers the name that somebody probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace winnow {

// The candidate with the smallest edit distance to `name`, or "" if none is near (more than a third
// of its letters differ).
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

// " (did you mean 'x'?)", or "" if none is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates);

// "a, b, c"
std::string Joined(const std::vector<std::string>& names);

// "unknown selector 'x' (did you mean 'y'?); known: y, z"
std::string UnknownName(std::string_view what, std::string_view name,
                        const std::vector<std::string>& known);

}  // namespace winnow
