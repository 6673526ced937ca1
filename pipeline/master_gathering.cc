#include "pipeline/master_gathering.h"

#include <algorithm>
#include <utility>

#include "pipeline/description/tensors.h"

namespace rp {

namespace {

constexpr std::int64_t kPieceElements = kMessageBytes / sizeof(float);

// Calls action(memory) for each message that contains a part of `elements`, fp32.
template <typename Action>
void for_pieces(const at::Tensor& elements, const Action& action) {
  for (std::int64_t begin = 0; begin < elements.numel(); begin += kPieceElements) {
    const at::Tensor piece = elements.narrow(0, begin, std::min(kPieceElements, elements.numel() - begin));
    action(std::span(static_cast<std::byte*>(piece.mutable_data_ptr()), piece.nbytes()));
  }
}

}  // namespace

MasterGathering::MasterGathering(NodeNetwork& network, int pipeline)
    : network_(network), tag_{.kind = NodeMessageKind::kMasters, .number = static_cast<std::uint32_t>(pipeline)} {
  network.add_failure_handler(
      [pending = pending_](std::exception_ptr error) mutable { pending.fail(std::move(error)); });
}

at::Tensor MasterGathering::add(Store& store, const TensorRecord& parameter, Version version) {
  const OwnedPart own = owned_master(store, parameter, version);
  if (network_.place().node > 0) {
    for_pieces(own.value, [&](std::span<std::byte> memory) { network_.send(0, tag_, memory, pending_.add()); });
    return {};
  }
  const at::IntArrayRef shape(parameter.desc.shape.data(), static_cast<std::size_t>(parameter.desc.rank));
  at::Tensor whole = at::empty(shape, at::kFloat);
  const at::Tensor flat = whole.view({-1});
  flat.narrow(0, static_cast<std::int64_t>(own.begin), own.value.numel()).copy_(own.value);
  for (int node = 1; node < network_.place().num_nodes; ++node) {
    const ElementRange part = owned_elements_of(store, parameter, node);
    // The tensor lives until the message is there, also after an error.
    for_pieces(flat.narrow(0, static_cast<std::int64_t>(part.begin), static_cast<std::int64_t>(part.size())),
               [&](std::span<std::byte> memory) {
                 network_.receive(node, tag_, memory, [whole, done = pending_.add()] { done(); });
               });
  }
  return whole;
}

}  // namespace rp
