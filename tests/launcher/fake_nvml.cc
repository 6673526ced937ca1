#include "tests/launcher/fake_nvml.h"

#include <cstdio>
#include <cstring>

namespace rp {

namespace {

constexpr std::uintptr_t kPerCard = 100;  // card i has the handle (i + 1) * 100, its instance j that + 1 + j

std::uintptr_t number_of(nvml::Device device) { return reinterpret_cast<std::uintptr_t>(device); }
const FakeCard& card_of(nvml::Device device) { return fake_driver().cards.at(number_of(device) / kPerCard - 1); }
std::size_t instance_of(nvml::Device device) { return number_of(device) % kPerCard; }

nvml::Result put(const std::string& from, char* text, unsigned int length) {
  std::snprintf(text, length, "%s", from.c_str());
  return nvml::kSuccess;
}

template <typename T>
nvml::Result put(T from, T* to) {
  *to = from;
  return nvml::kSuccess;
}

nvml::Result init() {
  fake_driver().num_held += fake_driver().start == nvml::kSuccess ? 1 : 0;
  return fake_driver().start;
}
nvml::Result shutdown() { return --fake_driver().num_held, nvml::kSuccess; }
nvml::Result device_count(unsigned int* count) {
  *count = static_cast<unsigned int>(fake_driver().cards.size());
  return fake_driver().count;
}
nvml::Result device_by_index(unsigned int index, nvml::Device* device) {
  *device = reinterpret_cast<nvml::Device>((index + 1) * kPerCard);
  return fake_driver().cards.at(index).access;
}
nvml::Result uuid(nvml::Device device, char* text, unsigned int length) {
  const std::size_t instance = instance_of(device);
  return put(instance == 0 ? card_of(device).uuid : card_of(device).instances.at(instance - 1), text, length);
}
nvml::Result name(nvml::Device device, char* text, unsigned int length) {
  return put(card_of(device).name, text, length);
}
nvml::Result memory(nvml::Device, nvml::Memory* to) {
  return put(nvml::Memory{.total = 24ULL << 30, .free = 23ULL << 30, .used = 1ULL << 30}, to);
}
nvml::Result pci(nvml::Device device, nvml::PciInfo* info) {
  *info = {};
  info->domain = 0;
  info->bus = card_of(device).bus;
  info->device = 0;
  std::snprintf(info->bus_id, sizeof(info->bus_id), "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
  return nvml::kSuccess;
}
const char* error_string(nvml::Result result) { return result == nvml::kSuccess ? "Success" : "Fake Failure"; }
nvml::Result driver_version(char* text, unsigned int length) { return put("580.82.07", text, length); }
nvml::Result cuda_version(int* version) { return put(13000, version); }
nvml::Result link_generation(nvml::Device, unsigned int* to) { return put(1U, to); }
nvml::Result most_link_generation(nvml::Device, unsigned int* to) { return put(4U, to); }
nvml::Result link_width(nvml::Device device, unsigned int* to) { return put(card_of(device).width, to); }
nvml::Result most_link_width(nvml::Device, unsigned int* to) { return put(16U, to); }
nvml::Result capability(nvml::Device, int* major, int* minor) { return *minor = 9, put(8, major); }
nvml::Result compute_mode(nvml::Device device, int* mode) { return put(card_of(device).compute_mode, mode); }
nvml::Result mig_mode(nvml::Device device, unsigned int* current, unsigned int* pending) {
  *current = *pending = card_of(device).in_mig_mode ? 1 : 0;
  return nvml::kSuccess;
}
nvml::Result most_mig_instances(nvml::Device, unsigned int* count) { return put(7U, count); }
nvml::Result mig_instance(nvml::Device device, unsigned int index, nvml::Device* instance) {
  constexpr nvml::Result kNotFound = 6;
  if (index >= card_of(device).instances.size()) return kNotFound;
  return put(reinterpret_cast<nvml::Device>(number_of(device) + 1 + index), instance);
}

}  // namespace

FakeDriver& fake_driver() {
  static FakeDriver driver;
  return driver;
}

NvmlTable fake_nvml() {
  return {.init = init,
          .shutdown = shutdown,
          .device_count = device_count,
          .device_by_index = device_by_index,
          .uuid = uuid,
          .name = name,
          .memory = memory,
          .pci = pci,
          .error_string = error_string,
          .driver_version = driver_version,
          .cuda_version = cuda_version,
          .link_generation = link_generation,
          .link_width = link_width,
          .most_link_generation = most_link_generation,
          .most_link_width = most_link_width,
          .capability = capability,
          .compute_mode = compute_mode,
          .mig_mode = mig_mode,
          .most_mig_instances = most_mig_instances,
          .mig_instance = mig_instance};
}

std::vector<FakeCard> equal_cards(int number) {
  std::vector<FakeCard> cards;
  for (int i = 0; i < number; ++i) {
    const auto place = static_cast<std::size_t>(i);
    cards.push_back({.uuid = std::string("GPU-") + "abcdefgh"[place % 8] + std::to_string(i) + "-0000",
                     .bus = 0x10 + static_cast<unsigned int>(i)});
  }
  return cards;
}

}  // namespace rp
