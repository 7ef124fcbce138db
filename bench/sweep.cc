#include "bench/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "bench/timed_rounds.h"
#include "core/byte_size.h"
#include "core/error.h"
#include "core/memory.h"
#include "policy/arm.h"
#include "policy/nearest_name.h"

namespace winnow {
namespace {

// As far as the arm goes.
constexpr int64_t kMaxPages = 1 << 24;
constexpr int64_t kMaxCandidates = 1 << 30;
constexpr int64_t kMaxIterations = 100'000;
constexpr int64_t kMaxTokens = 1 << 22;
constexpr int64_t kMinTokens = 1024;
constexpr int kMaxLayers = 1024;
// What is not counted by the layers: scores, weights and the program.
constexpr int64_t kSpareBytes = 256 << 20;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::vector<std::string_view> SplitValues(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

template <typename T>
void CheckDistinct(const std::string& what, const std::vector<T>& values) {
  if (values.empty()) Throw(ErrorKind::kUsage, "the sweep over {} has no values", what);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::find(values.begin(), values.begin() + i, values[i]) != values.begin() + i) {
      Throw(ErrorKind::kUsage, "the sweep over {} has {} twice", what, values[i]);
    }
  }
}

void CheckRange(const std::string& what, const std::vector<int64_t>& values, int64_t low,
                int64_t high) {
  for (const int64_t value : values) {
    if (value < low || value > high) {
      Throw(ErrorKind::kUsage, "the sweep over {}: {} is not in {} to {}", what, value, low, high);
    }
  }
  CheckDistinct(what, values);
}

std::vector<int64_t> Numbers(const std::string& name, std::string_view text) {
  std::vector<int64_t> numbers;
  for (const std::string_view part : SplitValues(text)) {
    int64_t number = 0;
    const char* const last = part.data() + part.size();
    const auto [end, error] = std::from_chars(part.data(), last, number);
    if (error != std::errc() || end != last) {
      Throw(ErrorKind::kUsage, "the sweep over {}: '{}' is no whole number; values are as in {}",
            name, part, "P=8:16:32");
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::string> Solvers(std::string_view text) {
  std::vector<std::string> solvers;
  for (const std::string_view part : SplitValues(text)) {
    std::string name = Lower(part);
    const std::vector<std::string> known = SolverNames();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      Throw(ErrorKind::kUsage, "{}", UnknownName("solver", part, known));
    }
    solvers.push_back(std::move(name));
  }
  return solvers;
}

// What is unmeasured of a cell.
std::vector<SweepRow> PlanCells(const SweepOptions& options, int64_t tokens) {
  std::vector<SweepRow> cells;
  for (const int64_t pages : options.pages) {
    for (const int64_t candidates : options.candidates) {
      for (const std::string& solver : options.solvers) {
        const std::string arm = fmt::format("select=vashista,P={},Kc={},dense_layers=0,solver={}",
                                            pages, candidates, solver);
        SweepRow cell{.tokens = tokens,
                      .pages = pages,
                      .candidates = candidates,
                      .solver = solver,
                      .arm = arm};
        if (solver == "softmax") {
          cells.push_back(cell);
          continue;
        }
        for (const int64_t iterations : options.iterations) {
          cell.iterations = iterations;
          cell.arm = fmt::format("{},iters={}", arm, iterations);
          cells.push_back(cell);
        }
      }
    }
  }
  return cells;
}

// The layers that serve every cell of a context.
LayersOptions LayersFor(const SweepOptions& options, int64_t tokens) {
  PlaneSet planes;
  for (const SweepRow& cell : PlanCells(options, tokens)) planes.Add(ArmPlanes({cell.arm}));
  return {.heads = options.heads,
          .dtype = options.dtype,
          .n_tokens = tokens,
          .n_layers = options.n_layers,
          .planes = planes};
}

SweepCertificate Certificate(const SolverAccount& account, const std::string& solver) {
  SweepCertificate certificate{.gap = account.gap_max, .distance = account.distance_max};
  if (solver == "eg") certificate.value_distance = account.value_distance_max;
  const auto problems = static_cast<double>(account.problems);
  certificate.iterations = static_cast<double>(account.iterations) / problems;
  certificate.converged = static_cast<double>(account.converged) / problems;
  return certificate;
}

// Fills in the cell; false if it was told to stop.
bool MeasureCell(ThreadPool& threads, const SyntheticLayers& layers, int repetitions,
                 const SweepWatch& watch, SweepRow* cell) {
  DenseRound dense(threads, layers);
  SparseRound sparse(threads, layers, cell->arm);
  const std::optional<RoundMedians> medians =
      AlternatingMedians(repetitions, dense, sparse, watch.should_stop);
  if (!medians.has_value()) return false;
  const int n_layers = layers.size();
  cell->dense_ms = 1e3 * medians->a / n_layers;
  cell->sparse_ms = 1e3 * medians->b / n_layers;
  const double total = sparse.TotalMs();
  cell->routing =
      (sparse.StageMs(&StageSeconds::score) + sparse.StageMs(&StageSeconds::select)) / total;
  cell->solver_share = sparse.StageMs(&StageSeconds::solve) / total;
  cell->kernel = sparse.StageMs(&StageSeconds::attention) / total;
  cell->other = 1 - cell->routing - cell->solver_share - cell->kernel;
  const AttentionAccount& account = sparse.account();
  cell->bytes_read = account.bytes_read / n_layers;
  cell->bytes_dense = account.bytes_dense / n_layers;
  cell->tokens_read = static_cast<double>(account.tokens_read) / n_layers;
  if (cell->iterations) cell->certificate = Certificate(account.solver, cell->solver);
  return true;
}

}  // namespace

std::vector<std::string> SweepNames() { return {"P", "Kc", "solver", "iterations"}; }

void SetSweep(const std::vector<std::string>& list, SweepOptions* options) {
  if (list.empty()) {
    Throw(ErrorKind::kUsage, "a sweep over nothing; known: {}", Joined(SweepNames()));
  }
  std::vector<std::string> names;
  for (const std::string& item : list) {
    const size_t equals = item.find('=');
    const bool given = equals != std::string::npos;
    const std::string_view text = item;
    const std::string name = Lower(text.substr(0, equals));
    const std::string_view values = given ? text.substr(equals + 1) : "";
    const auto numbers = [&](const char* what, const std::vector<int64_t>& of_paper) {
      return given ? Numbers(what, values) : of_paper;
    };
    if (name == "p") {
      options->pages = numbers("P", {8, 16, 32, 64});
    } else if (name == "kc") {
      options->candidates = numbers("Kc", {32, 64, 128, 256});
    } else if (name == "iterations") {
      options->iterations = numbers("iterations", {2, 4, 6});
    } else if (name == "solver") {
      options->solvers = given ? Solvers(values) : SolverNames();
    } else {
      Throw(ErrorKind::kUsage, "{}",
            UnknownName("parameter of a sweep", text.substr(0, equals), SweepNames()));
    }
    names.push_back(name);
  }
  CheckDistinct("its parameters", names);
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (has("iterations") && !has("solver")) options->solvers = {"eg"};
}

int64_t SweepCells(const SweepOptions& options) {
  return std::ssize(options.tokens) * std::ssize(PlanCells(options, 0));
}

void CheckSweep(const SweepOptions& options) {
  CheckRange("tokens", options.tokens, kMinTokens, kMaxTokens);
  CheckRange("P", options.pages, 1, kMaxPages);
  CheckRange("Kc", options.candidates, 0, kMaxCandidates);
  CheckRange("iterations", options.iterations, 0, kMaxIterations);
  CheckDistinct("solver", options.solvers);
  CheckRange("layers", {options.n_layers}, 1, kMaxLayers);
  const int64_t most_pages = *std::max_element(options.pages.begin(), options.pages.end());
  for (const int64_t tokens : options.tokens) {
    if (tokens % kDefaultPageSlots != 0) {
      Throw(ErrorKind::kUsage, "the sweep over tokens: {} is no multiple of {}, a page", tokens,
            kDefaultPageSlots);
    }
    if (most_pages * kDefaultPageSlots > tokens) {
      Throw(ErrorKind::kUsage,
            "the sweep over P: {} pages of {} tokens are more than a context of {}", most_pages,
            kDefaultPageSlots, tokens);
    }
  }
  const int64_t longest = *std::max_element(options.tokens.begin(), options.tokens.end());
  const int64_t needed = LayersFor(options, longest).Bytes() + kSpareBytes;
  const auto available = static_cast<int64_t>(AvailableMemoryBytes());
  if (needed > available) {
    const auto [needed_text, available_text] = FormatBytesApart(needed, available);
    Throw(ErrorKind::kResource,
          "{} layers of {} tokens take {}, and {} are available: ask for shorter contexts "
          "(--sweep-tokens) or fewer layers (--sweep-layers)",
          options.n_layers, longest, needed_text, available_text);
  }
}

SweepRun RunSweep(ThreadPool& threads, const SweepOptions& options, const SweepWatch& watch) {
  CheckSweep(options);
  SweepRun run;
  const int64_t n_cells = SweepCells(options);
  for (const int64_t tokens : options.tokens) {
    if (watch.should_stop()) {
      run.complete = false;
      return run;
    }
    watch.progress(fmt::format("{} tokens: filling {} layers", tokens, options.n_layers));
    const SyntheticLayers layers(threads, LayersFor(options, tokens));
    for (SweepRow& cell : PlanCells(options, tokens)) {
      watch.progress(fmt::format("cell {} of {}: {} tokens, {}", run.rows.size() + 1, n_cells,
                                 tokens, cell.arm));
      if (!MeasureCell(threads, layers, options.repetitions, watch, &cell)) {
        run.complete = false;
        return run;
      }
      run.rows.push_back(std::move(cell));
    }
  }
  return run;
}

}  // namespace winnow
