#include "cli/bench_sweep.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/sweep_report.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/result_folder.h"
#include "cli/signals.h"
#include "core/parallel.h"
#include "model/synthetic.h"

namespace winnow {
namespace {

constexpr char kRecord[] = "sweep.json";

SweepOptions ToOptions(const SweepFlags& flags, const ModelFlags& model, int repetitions) {
  SweepOptions options = flags.options;
  SetSweep(flags.list, &options);
  options.heads = HeadsOfShape(flags.shape);
  options.dtype = ParseDType(model.kv_type);
  options.repetitions = repetitions;
  return options;
}

void WriteFolder(const std::string& folder, const std::string& record,
                 const std::vector<FigureFile>& figures) {
  for (const FigureFile& figure : figures) WriteResultFile(folder, figure.name, figure.svg);
  WriteResultFile(folder, kRecord, record);
}

}  // namespace

void AddSweepFlags(CLI::App& command, SweepFlags& flags, const std::vector<CLI::Option*>& others) {
  const std::string group = "Sweep";
  CLI::Option* sweep =
      command
          .add_option("--sweep", flags.list,
                      "Instead: one layer of a synthetic shape over any of P, Kc, solver and "
                      "iterations; P=8:16 names the values")
          ->type_name("NAME,...")
          ->delimiter(',')
          ->group(group);
  for (CLI::Option* other : others) sweep->excludes(other);
  const auto needs_sweep = [&](CLI::Option* option, const char* type) {
    return option->type_name(type)->needs(sweep)->group(group);
  };
  needs_sweep(command.add_option("--sweep-tokens", flags.options.tokens, "Contexts, in tokens"),
              "N,...")
      ->delimiter(',')
      ->capture_default_str();
  needs_sweep(command.add_option("--sweep-layers", flags.options.n_layers,
                                 "Layers in turn, so that no cache holds what is read"),
              "N")
      ->check(Between(1, 1024))
      ->capture_default_str();
  needs_sweep(command.add_option("--shape", flags.shape, "The synthetic shape whose heads it has"),
              "SHAPE")
      ->transform(OneOf("shape", SyntheticShapes()))
      ->capture_default_str();
  needs_sweep(command.add_option("-o,--out", flags.out,
                                 "Folder for sweep.json and the heat maps as SVG (docs/json.md)"),
              "DIR")
      ->check(NotEmpty());
}

int RunBenchSweep(const SweepFlags& flags, const ModelFlags& model, int repetitions, bool json) {
  const SweepOptions options = ToOptions(flags, model, repetitions);
  CheckSweep(options);
  MakeResultFolder(flags.out, kRecord, "sweep");
  ThreadPool pool(model.threads > 0 ? model.threads : DefaultThreads());
  const SweepSubject subject{.shape = flags.shape, .n_threads = pool.size()};
  SweepRun run;
  int signal = 0;
  {
    const ChangingLine line(/*enabled=*/true);
    const InterruptScope interrupts;
    run = RunSweep(pool, options,
                   {.should_stop = [&] { return interrupts.Pending() != 0; },
                    .progress = [&](std::string_view what) { line.Show(what); }});
    signal = interrupts.Pending();
  }
  if (!run.complete) Warn("stopped: what was finished is reported");
  const std::string record = DumpJson(SweepToJson(run, options, subject), /*indent=*/true) + "\n";
  int exit_code = run.complete ? 0 : 128 + signal;
  try {
    if (!flags.out.empty()) WriteFolder(flags.out, record, SweepFigures(run, options, subject));
  } catch (const Error& error) {  // what was measured is printed all the same
    Warn(error.what());
    exit_code = DescribeError(error.kind()).exit_code;
  }
  Output output;
  output.Write(json ? record : SweepTable(run, options, subject));
  return output.ExitCode(exit_code);
}

}  // namespace winnow
