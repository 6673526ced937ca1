// nccl/gradient_route.h
// Decides which elements of a gradient the GPUs of the nodes send to each other, where received
// ones lie in device memory, and where the parts of all nodes lie in the gradient buffer of the
// host store (docs/design/several-nodes.md#nccl-between-gpus).
//
// The gradient of a use is exchanged in pieces, so that the memory for received parts is bounded.
// Piece p consists of elements [p L, (p + 1) L) of what each node owns of the weight group, counted
// from the first element that the node owns. All nodes compute the same pieces.
//
// In the host's buffer of a use, the parts of what this node owns follow each other in the order of
// the nodes that have computed them, its own among them. In a step in which each node has computed
// equally many rounds, this is the order of the rounds (common/nodes.h, deal_rounds()).
//
// A value without memory of its own; the catalogue must outlive it. The groups must be trained.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/nodes.h"
#include "hoststore/catalogue.h"
#include "nccl/node_communicator.h"

namespace rp {

class GradientRoute {
 public:
  // `receive_bytes`: of device memory for the received parts of one piece. Pieces become as long as
  // that permits, but at least one chunk of each owner.
  GradientRoute(const Catalogue& catalogue, std::uint64_t receive_bytes)
      : catalogue_(catalogue), receive_bytes_(receive_bytes) {}

  // Returns the number of exchanges that move a gradient of this group. It is the same on all nodes.
  // 0: the group has no elements, or there is only one node.
  [[nodiscard]] std::uint64_t num_pieces(GroupId group) const;

  // Returns the elements of the group that belong to a piece among those that `owner` owns. Every
  // other node sends them to the owner.
  [[nodiscard]] ElementRange elements(GroupId group, std::uint64_t piece, int owner) const;

  // Returns what this node sends and receives in a piece. Every node begins with the one after it.
  // `gradient`: this node's, on the device. `received`: receive_buffer_bytes() of device memory.
  [[nodiscard]] std::vector<ExchangePart> parts(GroupId group, std::uint64_t piece, const std::byte* gradient,
                                                std::byte* received) const;

  // A copy from the device to the host's gradient buffer. `to`: bytes from its beginning.
  struct Download {
    int node = 0;  // whose gradient it is a part of
    std::span<const std::byte> from{};
    std::uint64_t to = 0;
  };
  // Returns the copies after the exchange of a piece: one for each node, if this node owns elements
  // of the piece. The arguments are those of parts().
  [[nodiscard]] std::vector<Download> downloads(GroupId group, std::uint64_t piece, const std::byte* gradient,
                                                const std::byte* received) const;

  // Returns the bytes that any piece of any trained group needs for its received parts.
  [[nodiscard]] std::uint64_t receive_buffer_bytes() const;

 private:
  // Received parts begin at multiples of this, which is what GPUs copy at once.
  static constexpr std::uint64_t kAlignment = 256;

  [[nodiscard]] std::uint64_t num_others() const {
    return static_cast<std::uint64_t>(catalogue_.place().num_nodes) - 1;
  }
  [[nodiscard]] std::uint64_t element_bytes(GroupId group) const {
    return dtype_bytes(catalogue_.weight_groups()[group].dtype);
  }
  // The number of elements of each owner that belong to one piece, at most.
  [[nodiscard]] std::uint64_t piece_elements(GroupId group) const;
  // Returns where the part that comes from `node` begins in the memory for received parts.
  [[nodiscard]] std::uint64_t received_at(GroupId group, std::uint64_t piece, int node) const;

  const Catalogue& catalogue_;
  const std::uint64_t receive_bytes_;
};

}  // namespace rp
