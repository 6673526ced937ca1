#include "launcher/doctor/doctor_report.h"

#include <algorithm>
#include <cstdlib>

#include "common/text.h"
#include "common/text_table.h"

namespace rp {

namespace {

constexpr double kSlowRegistration = 0.5;  // s/GiB; 0.1 is usual
constexpr int kCudaMajor = 13;             // CUDA version of the LibTorch that this project builds with

std::string link_text(const PcieLink& link) {
  if (link.generation == 0 && link.width == 0) return "?";
  return cat(link.generation, ".0 x", link.width);
}

std::string number_or_unknown(int number) { return number < 0 ? "?" : std::to_string(number); }

void add_gpu_advice(const Gpu& gpu, const DoctorReport& report, std::vector<Advice>& list) {
  const std::string about = gpu_text(gpu);
  const auto add = [&](const std::string& text, bool is_problem) { list.push_back({about, text, is_problem}); };
  if (!gpu.problem.empty()) add(cat("cannot be used: ", gpu.problem), true);
  if (gpu.uuid.empty()) return;
  if (gpu.link.width > 0 && gpu.link.width < gpu.card_link.width) {
    add(cat("its PCIe link has ", gpu.link.width, " lanes and the card ", gpu.card_link.width,
            ": copies take so much longer; look for a wider slot, a riser, the BIOS's bifurcation, or a card that sits "
            "loosely"),
        true);
  }
  if (gpu.most_link.generation > 0 && gpu.most_link.generation < gpu.card_link.generation) {
    add(cat("its slot allows PCIe ", gpu.most_link.generation, ".0 and the card does ", gpu.card_link.generation,
            ".0: look into the BIOS, for a better slot or riser"),
        true);
  }
  if (gpu.exclusive)
    add(cat("takes one process at a time; for several workers on it: nvidia-smi -i ", gpu.index, " -c DEFAULT"), false);
  if (gpu.memory_bytes > 0 && gpu.free_bytes < gpu.memory_bytes / 10 * 9) {
    add(cat("other programs have ", bytes_text(gpu.memory_bytes - gpu.free_bytes),
            " of its memory (nvidia-smi tells which)"),
        false);
  }
  if (report.nodes.size() > 1 && gpu.numa_node < 0) {
    add("its NUMA node is unknown: its worker is not bound to cores (numactl around rp-launch, or the BIOS's NUMA "
        "settings)",
        false);
  }
  const bool has_cores = std::any_of(report.nodes.begin(), report.nodes.end(),
                                     [&gpu](const NumaNode& node) { return node.number == gpu.numa_node; });
  if (report.nodes.size() > 1 && gpu.numa_node >= 0 && !has_cores) {
    add(cat("no core of its NUMA node ", gpu.numa_node,
            " may be used: its worker crosses to another node; give the job or container cores of that node"),
        true);
  }
}

void add_driver_advice(const DoctorReport& report, std::vector<Advice>& list) {
  if (!report.system.missing.empty()) return;
  const std::string& cuda = report.system.cuda;
  if (!cuda.empty() && std::atoi(cuda.c_str()) < kCudaMajor) {
    list.push_back({"driver",
                    cat("it serves CUDA ", cuda, ", and LibTorch here is made for CUDA ", kCudaMajor,
                        ": install a driver of version 580 or newer"),
                    true});
  }
  if (report.plugin.empty()) {
    list.push_back({"plug-in", "this build cannot use GPUs: build it with the CUDA toolkit", true});
  }
}

// Adds advice on those capabilities of GPU and driver that runs depend on.
void add_attribute_advice(const GpuBandwidth& measured, std::vector<Advice>& list) {
  if (!measured.alone) return;
  const ProbeFigures& figures = *measured.alone;
  const auto add = [&](const std::string& text, bool is_problem) {
    list.push_back({gpu_text(measured.gpu), text, is_problem});
  };
  if (!figures.has_word_operations) {
    add("its streams cannot wait for 64-bit words of memory, which is how workers' GPUs wait for each other by "
        "default: start runs with --signals events, or install a newer driver",
        true);
  }
  if (!figures.has_unified_addressing) {
    add("host and GPU do not have one space of addresses, which workers take for granted: runs on it fail; use another "
        "GPU, or the driver's 64-bit version",
        true);
  }
  if (figures.copy_engines == 1) {
    add("it has one copy engine: uploads of weights and downloads of gradients take turns, so that rounds with little "
        "computing take up to twice as long; more tokens in a microbatch hide them again",
        false);
  }
  if (!figures.registers_read_only) {
    add("its driver does not register memory that a process may only read: workers make the weights writable for "
        "themselves while these are registered; nothing needs to be done",
        false);
  }
  if (std::max(figures.register_s_per_gib, figures.register_read_only_s_per_gib) > kSlowRegistration) {
    add(cat("registering takes ", decimal(figures.register_s_per_gib, 2), " s a GiB (",
            decimal(figures.register_read_only_s_per_gib, 2),
            " s read-only): until the store is through, copies are slow; see huge pages and movable memory here"),
        false);
  }
}

TextTable gpu_table(const std::vector<Gpu>& gpus) {
  TextTable table({"GPU", "name", "memory", "free", "sm", "PCIe now", "at most", "card", "node", "UUID"});
  for (const Gpu& gpu : gpus) {
    table.add({std::to_string(gpu.index), gpu.name.empty() ? "?" : gpu.name, bytes_text(gpu.memory_bytes),
               bytes_text(gpu.free_bytes),
               gpu.capability_major == 0 ? "?" : cat(gpu.capability_major, ".", gpu.capability_minor),
               link_text(gpu.link), link_text(gpu.most_link), link_text(gpu.card_link),
               number_or_unknown(gpu.numa_node), gpu.uuid.empty() ? "?" : gpu.uuid});
  }
  return table;
}

std::string gpus_beside(const NumaNode& node, const std::vector<Gpu>& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus) {
    if (gpu.numa_node == node.number && node.number >= 0) text += cat(text.empty() ? "" : " ", gpu.index);
  }
  return text.empty() ? "-" : text;
}

std::string both_texts(const GpuBandwidth& gpu, double ProbeFigures::*figure, int digits) {
  if (!gpu.alone) return "-";
  const std::string alone = decimal((*gpu.alone).*figure, digits);
  return gpu.together ? cat(alone, " / ", decimal((*gpu.together).*figure, digits)) : alone;
}

std::string bandwidth_text(const std::vector<GpuBandwidth>& bandwidths) {
  TextTable table(
      {"GPU", "host to device", "device to host", "both, each", "copy, us", "register, s/GiB", "read-only", ""});
  for (const GpuBandwidth& gpu : bandwidths) {
    table.add({std::to_string(gpu.gpu.index), both_texts(gpu, &ProbeFigures::host_to_device_gbs, 1),
               both_texts(gpu, &ProbeFigures::device_to_host_gbs, 1),
               both_texts(gpu, &ProbeFigures::both_directions_gbs, 1),
               both_texts(gpu, &ProbeFigures::copy_latency_us, 1),
               gpu.alone ? decimal(gpu.alone->register_s_per_gib, 3) : "-",
               gpu.alone ? decimal(gpu.alone->register_read_only_s_per_gib, 3) : "-", gpu.failure});
  }
  return cat("\nbandwidths, GB/s over registered memory: alone / all GPUs together\n", table.text());
}

std::string attribute_text(const std::vector<GpuBandwidth>& bandwidths) {
  TextTable table(
      {"GPU", "copy engines", "64-bit stream memory operations", "read-only registration", "unified addressing"});
  const auto yes_or_no = [](bool value) { return std::string(value ? "yes" : "no"); };
  bool is_any = false;
  for (const GpuBandwidth& gpu : bandwidths) {
    if (!gpu.alone) continue;
    is_any = true;
    table.add({std::to_string(gpu.gpu.index), std::to_string(gpu.alone->copy_engines),
               yes_or_no(gpu.alone->has_word_operations), yes_or_no(gpu.alone->registers_read_only),
               yes_or_no(gpu.alone->has_unified_addressing)});
  }
  return is_any ? cat("\nwhat the driver does for each\n", table.text()) : "";
}

// Returns the table of products; empty if they were not requested.
std::string product_text(const std::vector<GpuBandwidth>& bandwidths) {
  TextTable table({"GPU", "bf16", "fp16", "fp16, fp16 sums", "tf32", "own memory, GB/s", ""});
  bool is_asked = false;
  for (const GpuBandwidth& gpu : bandwidths) {
    if (!gpu.alone) continue;
    std::vector<std::string> cells{std::to_string(gpu.gpu.index)};
    for (double ProbeFigures::*figure : kProductFigures) {
      const double value = (*gpu.alone).*figure;
      cells.push_back(value > 0 ? decimal(value, 1) : "-");
      is_asked = is_asked || value > 0;
    }
    cells.push_back(gpu.alone->products_problem);
    table.add(cells);
  }
  return is_asked ? cat("\nmatrix products, TFLOP/s, and copies inside the GPU's memory\n", table.text()) : "";
}

}  // namespace

std::vector<Advice> advice_on(const DoctorReport& report) {
  std::vector<Advice> list = report.variables;
  add_driver_advice(report, list);
  for (const Gpu& gpu : report.system.gpus) add_gpu_advice(gpu, report, list);
  for (const GpuBandwidth& gpu : report.bandwidths) {
    if (!gpu.failure.empty())
      list.push_back({gpu_text(gpu.gpu), cat("its bandwidth was not measured: ", gpu.failure), true});
    add_attribute_advice(gpu, list);
  }
  for (const LimitLine& line : report.limits) {
    if (!line.advice.empty()) list.push_back({line.name, line.advice, line.is_problem});
  }
  std::stable_partition(list.begin(), list.end(), [](const Advice& advice) { return advice.is_problem; });
  return list;
}

std::string advice_text(const std::vector<Advice>& list) {
  std::string text;
  for (const bool is_problem : {true, false}) {
    bool first = true;
    for (const Advice& advice : list) {
      if (advice.is_problem != is_problem) continue;
      if (first) text += is_problem ? "\nwhat is wrong, and what to do\n" : "\ngood to know\n";
      first = false;
      text += cat("  ", advice.about, ": ", advice.text, "\n");
    }
  }
  return text;
}

std::string doctor_text(const DoctorReport& report) {
  const GpuSystem& system = report.system;
  std::string text;
  if (!system.missing.empty()) {
    text += cat(system.missing, "\n");
  } else {
    const std::string cuda = system.cuda.empty() ? "" : cat(", CUDA ", system.cuda);
    text += cat("driver    ", system.driver.empty() ? "?" : system.driver, cuda, "\n");
    text += cat("plug-in   ", report.plugin.empty() ? "none" : report.plugin, "\n\n", gpu_table(system.gpus).text());
    if (!system.instances.empty()) text += cat("\nMIG instances\n", gpu_table(system.instances).text());
  }
  if (!report.bandwidths.empty())
    text += bandwidth_text(report.bandwidths) + attribute_text(report.bandwidths) + product_text(report.bandwidths);
  if (!report.unmeasured.empty()) text += cat("\nbandwidths were not measured: ", report.unmeasured, "\n");
  TextTable nodes({"NUMA node", "cores", "GPUs"});
  for (const NumaNode& node : report.nodes) {
    nodes.add({number_or_unknown(node.number), cpu_text(node.cpus), gpus_beside(node, system.gpus)});
  }
  TextTable limits({"limit", "now"});
  for (const LimitLine& line : report.limits) limits.add({line.name, line.value});
  text += cat("\n", nodes.text(), "\n", limits.text());
  return text + advice_text(advice_on(report));
}

}  // namespace rp
