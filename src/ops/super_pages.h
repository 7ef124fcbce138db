// Merges the summaries of neighbouring pages to those of super-pages, by which a long context is
// searched coarsely first.
#pragma once

#include "kv/sequence_kv.h"

namespace winnow {

// Writes the super-pages of `layer` that the sequence does not have yet, from the planes of its
// full pages, and in their format. Mean and deviation are those of all keys of the super-page as
// far as its pages tell, the box holds the boxes exactly. Does nothing where pages keep no such
// planes or were released.
void UpdateSuperPages(SequenceKv* kv, int layer);

}  // namespace winnow
