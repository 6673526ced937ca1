#include "launcher/machine/mpi_job.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "common/nodes.h"
#include "common/text.h"

namespace rp {

int num_nodes_of_job() {
  if (const auto size = environment_value("OMPI_COMM_WORLD_SIZE"))
    return parse_count("OMPI_COMM_WORLD_SIZE", *size, 1, kMaxNodes);
  // srun connects its processes to each other only with --mpi=pmix.
  const auto size = environment_value("SLURM_STEP_NUM_TASKS");
  if (size && environment_value("PMIX_RANK")) return parse_count("SLURM_STEP_NUM_TASKS", *size, 1, kMaxNodes);
  return 1;
}

bool is_job_variable(const std::string& name) {
  constexpr std::array<const char*, 4> kPrefixes = {"OMPI_", "PMIX_", "PMI_", "ORTE_"};
  return std::ranges::any_of(kPrefixes, [&name](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace rp
