// launcher/hosts_doctor/hosts_doctor.h
// Implements `rp-launch doctor --hosts`: finds out whether hosts can run a job together. docs/doctor.md.
#pragma once

#include <filesystem>
#include <string>

#include "launcher/doctor/doctor.h"

namespace rp {

// Asks each host whether a run can start on it and what it has, has those that can measure the network between them,
// and prints the report. Returns 0, the exit code with which a run would end on the first host that cannot start one,
// or kNodeLost if messages between hosts do not arrive; 128+n after signal n. Throws rp::Error kUsage within a job of
// MPI, kNotFound if there is no mpirun. REQUIRES: this process has one thread.
[[nodiscard]] int run_hosts_doctor(const DoctorOptions& options, const std::filesystem::path& own_directory);

// What the rp-launch on each host does: prints what the host has, or is one of the nodes that measure the network.
// Returns the exit code. Throws the errors of connect_nodes().
[[nodiscard]] int run_host_part(DoctorOptions::HostPart part, const std::filesystem::path& own_directory,
                                const std::string& library_path);

}  // namespace rp
