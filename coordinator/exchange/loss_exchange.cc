#include "coordinator/exchange/loss_exchange.h"

#include <algorithm>
#include <memory>

#include "common/check.h"
#include "hoststore/round_table.h"

namespace rp {

namespace {

NodeMessageTag tag_of(int pipeline) {
  return {.kind = NodeMessageKind::kLosses, .number = static_cast<std::uint32_t>(pipeline)};
}

}  // namespace

void LossExchange::end_message() {
  --num_messages_;
  on_done_();
}

void LossExchange::send(int pipeline, const std::vector<double>& losses) {
  const auto message = std::make_shared<LossRecord>();
  RP_ASSERT(losses.size() <= message->values.size());
  message->num = losses.size();
  std::ranges::copy(losses, message->values.begin());
  const NodePlace place = network_.place();
  for (int node = 0; node < place.num_nodes; ++node) {
    if (node == place.node) continue;
    ++num_messages_;
    network_.send(node, tag_of(pipeline), std::as_bytes(std::span(message.get(), 1)),
                  [this, message] { end_message(); });
  }
}

void LossExchange::receive(int node, int pipeline, std::function<void(std::vector<double> losses)> take) {
  const auto message = std::make_shared<LossRecord>();
  ++num_messages_;
  network_.receive(node, tag_of(pipeline), std::as_writable_bytes(std::span(message.get(), 1)),
                   [this, message, take = std::move(take)] {
                     const auto num = static_cast<std::ptrdiff_t>(std::min(message->num, message->values.size()));
                     take({message->values.begin(), message->values.begin() + num});
                     end_message();
                   });
}

}  // namespace rp
