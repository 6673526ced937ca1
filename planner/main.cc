// rp-plan predicts how a model would train on GPUs that need not be present: docs/planning.md.

#include <atomic>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "common/files/output_file.h"
#include "common/program_main.h"
#include "common/text.h"
#include "planner/compare_command.h"
#include "planner/options.h"
#include "planner/plan_report.h"
#include "planner/published_runs.h"
#include "planner/simulate_command.h"
#include "planner/timeline/timeline_page.h"
#include "planner/timeline_command.h"

namespace {

std::atomic<bool> interrupted{false};  // writer: the handler of INT and TERM

int simulate(const rp::PlanOptions& options) {
  const rp::WorkloadFile file = rp::read_workload_file(options.input);
  if (options.effort == rp::Effort::kForever) {
    for (const int number : {SIGINT, SIGTERM}) {
      std::signal(number, [](int signal) {
        interrupted = true;
        std::signal(signal, SIG_DFL);  // a second signal ends the program at once
      });
    }
  }
  const auto found = [](const std::string& text) { std::cerr << text; };
  const rp::SimulationResult result =
      rp::simulate_file(file, options.schedule, options.effort, found, [] { return interrupted.load(); });
  return rp::print_output(options.json ? rp::simulation_json(result) : rp::simulation_text(result));
}

int compare(const rp::PlanOptions& options) {
  if (options.published) {
    const rp::PublishedComparison comparison = rp::compare_published();
    return rp::print_output(options.json ? rp::published_json(comparison) : rp::published_text(comparison));
  }
  const rp::WorkloadFile file = rp::read_workload_file(options.input);
  const std::vector<rp::ComparedSchedule> schedules = rp::compare_schedules(file, options.effort);
  if (!options.html.empty()) {
    const std::string title = rp::cat("Schedules of ", options.input.filename().string());
    rp::replace_file(options.html, rp::timeline_html(rp::comparison_page(file, schedules, title)));
  }
  return rp::print_output(options.json ? rp::comparison_json(schedules) : rp::comparison_text(schedules));
}

int timeline(const rp::PlanOptions& options) {
  const rp::Trace trace = rp::read_trace(options.input, options.window);
  return rp::print_output(rp::timeline_text(trace, options.input.filename().string()));
}

int plan(const rp::PlanOptions& options) {
  const rp::PlanAnswer answer = rp::answer_question(options.question, options.effort, !options.html.empty());
  if (!options.html.empty()) rp::replace_file(options.html, rp::timeline_html(rp::answer_page(answer)));
  return rp::print_output(options.json ? rp::answer_json(answer) : rp::answer_text(answer));
}

int run(const std::vector<std::string>& arguments) {
  const rp::PlanOptions options = rp::parse_plan_options(arguments);
  switch (options.action) {
    case rp::PlanOptions::Action::kHelp: return rp::print_output(options.help);
    case rp::PlanOptions::Action::kVersion: return rp::print_output(rp::cat("rp-plan ", RP_VERSION, "\n"));
    case rp::PlanOptions::Action::kSimulate: return simulate(options);
    case rp::PlanOptions::Action::kCompare: return compare(options);
    case rp::PlanOptions::Action::kTimeline: return timeline(options);
    case rp::PlanOptions::Action::kPlan: return plan(options);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("rp-plan", [&] { return run({argv + 1, argv + argc}); });
}
