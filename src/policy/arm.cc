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
  static const std::vector<std::string> kKinds = {"select", "solver", "residual", "certify",
                                                  "prefill"};
  return kKinds;
}

struct ParsedArm {
  std::unique_ptr<DecodePolicy> policy;    // null: dense
  std::unique_ptr<PrefillPolicy> prefill;  // null: nothing is pruned
  std::string resolved;                    // of decode
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
      if (part != text) {
        Throw(ErrorKind::kUsage, "the arm '{}': '{}' is no policy or parameter, which have values",
              text, part);
      }
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

// Layers, or KV heads of layers, where the residual abstains.
CompletionGates GatesOf(Params& params) {
  std::vector<CompletionGate> gates;
  const std::string off = params.Text("off");
  if (!off.empty()) gates = ParseGates(params.policy(), off);
  const int64_t from_layer = params.Int("from_layer", 1, 1, 4096);
  for (int layer = 0; layer < from_layer - 1; ++layer) gates.push_back({.layer = layer});
  return CompletionGates(gates);
}

void RefuseContradictions(const DecodePolicy& policy, const Clause& select, const Clause& solver,
                          const Clause& certify) {
  const ReadRule& rule = policy.rule;
  const Selector& selector = *policy.selector;
  const bool widens = rule.tolerance < 1;
  const bool by_estimate = (widens && !rule.certified) || rule.mass > 0;
  if (widens && !rule.certified && !selector.estimates_mass()) {
    Throw(ErrorKind::kUsage,
          "select={} does not estimate the unread mass: it takes a tol only with a certificate "
          "(certify=sketch)",
          select.name);
  }
  if (rule.bounds_error() && !rule.certified) {
    Throw(ErrorKind::kUsage,
          "tol_error={} asks for a bound of the output's error: it takes a certificate "
          "(certify=sketch)",
          rule.error_tolerance);
  }
  if (rule.gap > 0 && !selector.has_scores()) {
    Throw(ErrorKind::kUsage, "select={} scores no keys: it takes no gap", select.name);
  }
  if (rule.mass > 0 && !selector.estimates_mass()) {
    Throw(ErrorKind::kUsage, "select={} does not estimate mass: it takes a budget, not a mass",
          select.name);
  }
  if (selector.chooses() && (by_estimate || rule.gap > 0)) {
    Throw(ErrorKind::kUsage,
          "select={} chooses by a number of its own: it takes no mass, no gap, and no tol for its "
          "estimate",
          select.name);
  }
  if (policy.solver.projects() &&
      (widens || rule.gap > 0 || policy.residual != nullptr || policy.certify)) {
    Throw(ErrorKind::kUsage,
          "the weights of solver={} are no attention weights, so no mass is unread: it takes no "
          "residual, no tol, no gap and no certificate of mass",
          solver.name);
  }
  // Its bound of rounding is that of attention over whole pages, and what is left out of them is
  // not in the mass that was read.
  if (policy.certifier != nullptr && selector.chooses_tokens()) {
    Throw(ErrorKind::kUsage,
          "certify={} bounds what pages that are not read have of the mass, and select={} leaves "
          "tokens out of those that it reads{}",
          certify.name, select.name, selector.chooses() ? "" : ": give it Kc=0");
  }
}

// Of what decode reads.
ParsedArm ParseDecode(std::vector<Clause> clauses) {
  Clause select{"select", "sketch", Params("select=sketch")};
  Clause solver{"solver", "softmax", Params("solver=softmax")};
  Clause residual{"residual", "none", Params("residual=none")};
  Clause certify{"certify", "", Params("certify")};
  for (Clause& clause : clauses) {
    (clause.kind == "select"     ? select
     : clause.kind == "solver"   ? solver
     : clause.kind == "residual" ? residual
                                 : certify) = std::move(clause);
  }
  auto policy = std::make_unique<DecodePolicy>();
  policy->selector = MakeSelector(select.name, select.params);
  policy->residual = MakeResidual(residual.name, policy->selector->weight_bits(), residual.params);
  if (policy->residual != nullptr) policy->gates = GatesOf(residual.params);
  // A residual that resolves values by token is good in every layer; what drops tokens, or takes
  // pages for points, is not in the first two.
  policy->rule = select.name == "all"
                     ? ReadRule::OfEverything(select.params)
                     : ReadRule::FromParams(select.params, policy->wants_weights());
  policy->solver = ParseSolver(solver.name, solver.params);
  policy->drop_left_out = select.name == "exact" && policy->residual == nullptr;
  if (certify.name.empty()) certify.name = policy->solver.projects() ? "none" : "estimate";
  policy->certifier = MakeCertifier(certify.name, policy->selector->weight_bits(), certify.params);
  policy->certify = certify.name != "none";
  policy->rule.certified = policy->certifier != nullptr;
  RefuseContradictions(*policy, select, solver, certify);
  std::string resolved;
  for (const Clause* clause : {&select, &solver, &residual, &certify}) {
    clause->params.Finish();
    resolved += fmt::format("{}{}={}{}", resolved.empty() ? "" : ",", clause->kind, clause->name,
                            clause->params.Canonical());
  }
  return {std::move(policy), nullptr, std::move(resolved)};
}

std::unique_ptr<PrefillPolicy> ParsePrefill(Clause clause) {
  std::unique_ptr<PrefillPolicy> policy = MakePruner(clause.name, clause.params);
  clause.params.Finish();
  if (policy != nullptr) {
    policy->text = fmt::format("prefill={}{}", clause.name, clause.params.Canonical());
  }
  return policy;
}

ParsedArm Parse(std::string_view text) {
  // What `auto` stands for is decided by whoever knows the model (auto_arm.h).
  if (text == "dense" || text == "auto") return {nullptr, nullptr, "dense"};
  std::vector<Clause> clauses = ParseClauses(text);
  const auto prefill = std::find_if(clauses.begin(), clauses.end(),
                                    [](const Clause& clause) { return clause.kind == "prefill"; });
  std::unique_ptr<PrefillPolicy> pruner;
  if (prefill != clauses.end()) {
    pruner = ParsePrefill(std::move(*prefill));
    clauses.erase(prefill);
  }
  ParsedArm arm =
      clauses.empty() ? ParsedArm{nullptr, nullptr, "dense"} : ParseDecode(std::move(clauses));
  arm.prefill = std::move(pruner);
  return arm;
}

uint64_t Fingerprint(const std::string& resolved) {
  return HashBytes(std::as_bytes(std::span(resolved))).low | 1;
}

}  // namespace

std::vector<std::string> KnownArms() { return {"auto", "dense"}; }

Arm ParseArm(std::string_view text) {
  const ParsedArm parsed = Parse(text);
  Arm arm{.text = std::string(text), .resolved = parsed.resolved};
  if (parsed.policy != nullptr) arm.fingerprint = Fingerprint(parsed.resolved);
  if (parsed.prefill != nullptr) {
    arm.prefill_fingerprint = Fingerprint(parsed.prefill->text);
    arm.resolved = parsed.policy == nullptr
                       ? parsed.prefill->text
                       : fmt::format("{},{}", parsed.resolved, parsed.prefill->text);
  }
  return arm;
}

std::unique_ptr<DecodePolicy> MakeDecodePolicy(std::string_view text) { return Parse(text).policy; }

std::unique_ptr<PrefillPolicy> MakePrefillPolicy(std::string_view text) {
  return Parse(text).prefill;
}

PlaneSet ArmPlanes(const std::vector<std::string>& arms) {
  PlaneSet planes;
  for (const std::string& text : arms) {
    const std::unique_ptr<DecodePolicy> policy = MakeDecodePolicy(text);
    if (policy != nullptr) planes.Add(policy->planes());
  }
  return planes;
}

int ArmChunkTokens(const std::vector<std::string>& arms) {
  for (const std::string& text : arms) {
    const std::unique_ptr<PrefillPolicy> policy = MakePrefillPolicy(text);
    if (policy != nullptr) return static_cast<int>(policy->params.chunk_tokens);
  }
  return 0;
}

}  // namespace winnow
