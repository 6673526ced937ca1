// tests/cuda/small_store.h
// A host store of a few layers, for tests of devices that use its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hoststore/store.h"

namespace rp::test {

// Returns a store of fp32 layers with one parameter each.
inline std::unique_ptr<Store> store_with_layers(int num_layers, std::int64_t num_elements) {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.arena_limit_bytes = 16 << 20;
  std::vector<LayerRequest> layers(static_cast<std::size_t>(num_layers), LayerRequest{.name = "l"});
  for (LayerRequest& layer : layers) layer.parameters.push_back({.name = "w", .shape = {num_elements}});
  return Store::create(settings, Catalogue::lay_out(layers, 1, false));
}

}  // namespace rp::test
