#include "nccl/gradient_route.h"

#include <algorithm>

#include "hoststore/boundary.h"

namespace rp {

std::uint64_t GradientRoute::piece_elements(GroupId group) const {
  const std::uint64_t chunk_bytes = kChunkElements * element_bytes(group);
  return std::max<std::uint64_t>(receive_bytes_ / (num_others() * chunk_bytes), 1) * kChunkElements;
}

std::uint64_t GradientRoute::num_pieces(GroupId group) const {
  if (num_others() == 0) return 0;
  // The longest range of a node has so many chunks: the quotient, rounded up.
  const std::uint64_t chunks = num_chunks(catalogue_.weight_groups()[group].num_elements);
  const std::uint64_t longest = (chunks + num_others()) / (num_others() + 1) * kChunkElements;
  const std::uint64_t piece = piece_elements(group);
  return (longest + piece - 1) / piece;
}

ElementRange GradientRoute::elements(GroupId group, std::uint64_t piece, int owner) const {
  const ElementRange owned = catalogue_.owned_by(owner, group);
  const std::uint64_t longest = piece_elements(group);
  return {.begin = std::min(owned.begin + piece * longest, owned.end),
          .end = std::min(owned.begin + (piece + 1) * longest, owned.end)};
}

std::uint64_t GradientRoute::received_at(GroupId group, std::uint64_t piece, int node) const {
  const int own = catalogue_.place().node;
  const auto index = static_cast<std::uint64_t>(node < own ? node : node - 1);
  return index * align_up(elements(group, piece, own).size() * element_bytes(group), kAlignment);
}

std::vector<ExchangePart> GradientRoute::parts(GroupId group, std::uint64_t piece, const std::byte* gradient,
                                               std::byte* received) const {
  const NodePlace place = catalogue_.place();
  const std::uint64_t bytes = element_bytes(group);
  const std::uint64_t own_bytes = elements(group, piece, place.node).size() * bytes;
  std::vector<ExchangePart> parts;
  for (int i = 1; i < place.num_nodes; ++i) {
    const int node = (place.node + i) % place.num_nodes;
    const ElementRange sent = elements(group, piece, node);
    parts.push_back({.node = node,
                     .sent = {gradient + sent.begin * bytes, sent.size() * bytes},
                     .received = {received + received_at(group, piece, node), own_bytes}});
  }
  return parts;
}

std::vector<GradientRoute::Download> GradientRoute::downloads(GroupId group, std::uint64_t piece,
                                                              const std::byte* gradient,
                                                              const std::byte* received) const {
  const NodePlace place = catalogue_.place();
  const std::uint64_t bytes = element_bytes(group);
  const ElementRange own = elements(group, piece, place.node);
  if (own.is_empty()) return {};
  const std::uint64_t offset = (own.begin - catalogue_.owned(group).begin) * bytes;
  std::vector<Download> downloads;
  for (int node = 0; node < place.num_nodes; ++node) {
    const std::byte* const from =
        node == place.node ? gradient + own.begin * bytes : received + received_at(group, piece, node);
    downloads.push_back(
        {.node = node, .from = {from, own.size() * bytes}, .to = catalogue_.part_offset(group, node) + offset});
  }
  return downloads;
}

std::uint64_t GradientRoute::receive_buffer_bytes() const {
  std::uint64_t most = 0;
  for (const GroupId group : catalogue_.weight_groups().indices()) {
    if (catalogue_.weight_groups()[group].is_trained == 0 || num_others() == 0) continue;
    // The first piece is the longest.
    const std::uint64_t bytes = elements(group, 0, catalogue_.place().node).size() * element_bytes(group);
    most = std::max(most, num_others() * align_up(bytes, kAlignment));
  }
  return most;
}

}  // namespace rp
