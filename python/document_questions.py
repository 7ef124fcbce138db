"""Makes questions over many documents for `winnow eval --jsonl` and `winnow calibrate --prompts`.

Usage: document_questions.py NQ.jsonl --words N [--first I] [--count N] [--seed S] > questions.jsonl

NQ.jsonl: one question a line with its gold passage, as Natural Questions in the "oracle" form of
Lost in the Middle has them: "question", "answers", "ctxs": [{"title", "text"}]. Each question gets
a context of about N words: its own passage among passages of other questions, at a random place.
The column "evidence" has the sentence that answers it, so that an evaluation can tell whether
pruning kept it.
"""

import argparse
import json
import random
import re
import sys


def passage(row):
    gold = row["ctxs"][0]
    return gold["title"], gold["text"]


def evidence(text, answers):
    """The sentence of the passage with an answer in it; the passage if no sentence has one."""
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if any(answer.lower() in sentence.lower() for answer in answers):
            return sentence
    return text


def make(rows, index, words, rng):
    title, text = passage(rows[index])
    others = rng.sample([i for i in range(len(rows)) if i != index], len(rows) - 1)
    texts, n_words = [], len(text.split())
    for other in others:
        other_title, other_text = passage(rows[other])
        # A passage on the same page may answer the question as well.
        if other_title == title or any(a.lower() in other_text.lower()
                                       for a in rows[index]["answers"]):
            continue
        n_words += len(other_text.split())
        if n_words > words:
            break
        texts.append(f"{other_title}\n{other_text}")
    texts.insert(rng.randint(0, len(texts)), f"{title}\n{text}")
    return {"task": "qa_documents", "context": "\n\n".join(texts),
            "question": rows[index]["question"].strip().capitalize() + "?",
            "answers": rows[index]["answers"], "evidence": evidence(text, rows[index]["answers"]), "max_new_tokens": 32}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("--words", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="index of the first question")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for index in range(arguments.first, min(arguments.first + arguments.count, len(rows))):
        rng = random.Random(arguments.seed * 1_000_003 + index)
        json.dump(make(rows, index, arguments.words, rng), sys.stdout, ensure_ascii=False)
        print()


main()
