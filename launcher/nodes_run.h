// launcher/nodes_run.h
// Runs a program on several hosts: starts mpirun, which starts an rp-launch on each, passes requests
// to stop on to all of them, and returns the exit code of the run.
#pragma once

#include <string>
#include <vector>

namespace rp {

// `arguments`: of mpirun, whose name comes first. Throws rp::Error kNotFound if there is no mpirun.
[[nodiscard]] int run_on_hosts(const std::vector<std::string>& arguments);

}  // namespace rp
