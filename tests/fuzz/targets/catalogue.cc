// The catalogue of the host store, with the checksum that its bytes require, and every function of
// it.
#include "hoststore/catalogue.h"

#include "tests/fuzz/reading.h"
#include "tests/hoststore/small_catalogue.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::byte> kBase = rp::test::small_catalogue().to_bytes();
  std::vector<std::byte> bytes = rp::fuzz::changed(kBase, rp::fuzz::text_of(data, size));
  if (size > bytes.size()) bytes.resize(size);
  rp::test::set_checksum(bytes);
  return rp::fuzz::expect_answer([&] {
    const rp::Catalogue catalogue = rp::Catalogue::from_bytes(bytes);
    (void)catalogue.num_parameters();
    for (const rp::CatalogueLayer layer : catalogue.layers().indices()) {
      (void)catalogue.is_trained(layer);
      for (const rp::TensorRecord& tensor : catalogue.tensors_of(layer)) (void)std::string(tensor.name.data());
      (void)std::string(catalogue.layers()[layer].name.data());
    }
    for (std::size_t i = 0; i < catalogue.pipelines().size(); ++i) {
      const int pipeline = static_cast<int>(i);
      (void)std::string(catalogue.pipelines()[i].name.data());
      (void)catalogue.first_trained_layer(pipeline);
      for (const rp::GroupId group : catalogue.trained_groups(pipeline)) (void)catalogue.uses_of_group(group).size();
    }
  });
}
