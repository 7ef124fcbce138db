#!/usr/bin/env bash
# The demo: a question over the example documents, and the same prompt through llama.cpp.
source "$(dirname "$0")/common.sh"

cd "$root"
question=$(cat examples/question.txt)
say "Asking about the documents in examples/documents: $question"
build/bin/winnow run -m default -f examples/documents -p "$question" --peer llama.cpp
