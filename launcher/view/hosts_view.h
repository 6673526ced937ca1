// launcher/view/hosts_view.h
// Shows the views of several hosts together, for `rp-launch ps` and `rp-launch top` with --hosts.
//
// Each host has an rp-launch that prints its views, one line each, until its connection ends. It only looks at its
// host, as `rp-launch top` there would: the processes of runs do nothing for it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launcher/view/ps.h"

namespace rp {

// Calls `show` with each view, and returns the exit code: that of `show` if it is not 0; the one with which a run would
// end on the first host of which nothing was seen; 128+n after signal n; otherwise 0. Ends when all hosts have. Throws
// rp::Error kUsage if there are no hosts, kNotFound if there is no mpirun. REQUIRES: this process has one thread.
[[nodiscard]] int run_hosts_view(const ViewOptions& options, const std::filesystem::path& own_directory,
                                 const std::function<int(const std::string&)>& show);

// What is known of a host at a moment.
struct HostView {
  std::string host;
  std::string text;     // the newest view: lines, or one of JSON; empty: there was none
  std::string problem;  // why there is no newer one; empty: there is no problem
};

// Returns the lines of all hosts under their names.
[[nodiscard]] std::string host_views_text(const std::vector<HostView>& views);
// Returns one line: docs/ps.md lists the fields.
[[nodiscard]] std::string host_views_json(const std::vector<HostView>& views);

// Returns a view as one line, and the view of such a line; empty for other lines.
[[nodiscard]] std::string host_view_line(const std::string& text);
[[nodiscard]] std::string text_of_host_view(const std::string& line);

}  // namespace rp
