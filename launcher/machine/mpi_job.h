// launcher/machine/mpi_job.h
// Finds out from the environment whether rp-launch was started as one of several processes of an MPI
// job, one on each node: by mpirun, or by srun.
#pragma once

#include <string>

namespace rp {

// Returns the number of processes of the job, or 1 if there is no job. Throws rp::Error (kUsage) for
// a number that is not one.
[[nodiscard]] int num_nodes_of_job();

// Returns true for variables by which a process finds its job. Workers do not get them, because they
// are not part of it.
[[nodiscard]] bool is_job_variable(const std::string& name);

}  // namespace rp
