#include "policy/arm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

const std::vector<std::string>& Kinds() {
  static const std::vector<std::string> kKinds = {"select", "residual", "certify"};
  return kKinds;
}

struct ParsedArm {
  std::unique_ptr<DecodePolicy> policy;  // null: dense
  std::string resolved;
};

// One "kind=name" with the parameters after it.
struct Clause {
  std::string kind;
  std::string name;
  Params params;
};

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<Clause> ParseClauses(std::string_view text) {
  std::vector<Clause> clauses;
  for (std::string_view part : Split(text)) {
    const size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      std::vector<std::string> known = KnownArms();
      Throw(ErrorKind::kUsage, "unknown arm '{}'{}; known: {}, or policies such as {}", text,
            DidYouMean(text, known), Joined(known), "select=sketch,budget=256,residual=sketch");
    }
    const std::string value(part.substr(equals + 1));
    if (std::find(Kinds().begin(), Kinds().end(), key) != Kinds().end()) {
      for (const Clause& clause : clauses) {
        if (clause.kind == key) Throw(ErrorKind::kUsage, "'{}' is given twice in the arm", key);
      }
      clauses.push_back({key, value, Params(fmt::format("{}={}", key, value))});
    } else if (clauses.empty()) {
      Throw(ErrorKind::kUsage, "an arm begins with a policy ({}), not with '{}'{}", Joined(Kinds()),
            key, DidYouMean(key, Kinds()));
    } else {
      clauses.back().params.Set(key, value);
    }
  }
  return clauses;
}

bool ParseCertify(const Clause& clause) {
  const std::vector<std::string> names = {"none", "estimate"};
  if (std::find(names.begin(), names.end(), clause.name) == names.end()) {
    Throw(ErrorKind::kUsage, "{}", UnknownName("certificate", clause.name, names));
  }
  return clause.name != "none";
}

ParsedArm Parse(std::string_view text) {
  // No profile is built in yet that says where sparse reading pays.
  if (text == "dense" || text == "auto") return {nullptr, "dense"};
  std::vector<Clause> clauses = ParseClauses(text);
  Clause select{"select", "sketch", Params("select=sketch")};
  Clause residual{"residual", "none", Params("residual=none")};
  Clause certify{"certify", "estimate", Params("certify=estimate")};
  for (Clause& clause : clauses) {
    (clause.kind == "select"     ? select
     : clause.kind == "residual" ? residual
                                 : certify) = std::move(clause);
  }
  auto policy = std::make_unique<DecodePolicy>();
  policy->selector = MakeSelector(select.name, select.params);
  policy->residual = MakeResidual(residual.name, policy->selector->weight_bits(), residual.params);
  if (policy->residual != nullptr) {
    const std::string off = residual.params.Text("off");
    if (!off.empty()) policy->gates = CompletionGates(ParseGates(residual.params.policy(), off));
  }
  // A residual that resolves values by token is good in every layer; what drops tokens, or takes
  // pages for points, is not in the first two.
  policy->rule = ReadRule::FromParams(select.params, policy->wants_weights());
  policy->certify = ParseCertify(certify);
  std::string resolved;
  for (const Clause* clause : {&select, &residual, &certify}) {
    clause->params.Finish();
    resolved += fmt::format("{}{}={}{}", resolved.empty() ? "" : ",", clause->kind, clause->name,
                            clause->params.Canonical());
  }
  if (policy->rule.tolerance < 1 && !policy->selector->estimates_mass()) {
    Throw(ErrorKind::kUsage, "select={} does not estimate the unread mass: it takes no tol",
          select.name);
  }
  if (policy->rule.mass > 0 && !policy->selector->estimates_mass()) {
    Throw(ErrorKind::kUsage, "select={} does not estimate mass: it takes a budget, not a mass",
          select.name);
  }
  if (select.name == "all") policy->rule.budget = int64_t{1} << 40;
  return {std::move(policy), std::move(resolved)};
}

}  // namespace

std::vector<std::string> KnownArms() { return {"auto", "dense"}; }

Arm ParseArm(std::string_view text) {
  const ParsedArm parsed = Parse(text);
  Arm arm{.text = std::string(text), .resolved = parsed.resolved};
  if (parsed.policy != nullptr) {
    arm.fingerprint = HashBytes(std::as_bytes(std::span(arm.resolved))).low | 1;
  }
  return arm;
}

std::unique_ptr<DecodePolicy> MakeDecodePolicy(std::string_view text) { return Parse(text).policy; }

PlaneSet ArmPlanes(const std::vector<std::string>& arms) {
  PlaneSet planes;
  for (const std::string& text : arms) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(text);
    if (policy != nullptr) planes.Add(policy->planes());
  }
  return planes;
}

}  // namespace winnow
