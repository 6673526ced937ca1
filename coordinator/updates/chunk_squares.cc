#include "coordinator/updates/chunk_squares.h"

#include "optimizer/update.h"

namespace rp {

ChunkSquares::ChunkSquares(const Catalogue& catalogue, std::span<const GroupId> groups) : catalogue_(catalogue) {
  std::size_t end = 0;
  for (int node = 0; node < catalogue.place().num_nodes; ++node) {
    begin_of_node_.push_back(end++);
    std::map<GroupId, std::size_t>& first = first_.emplace_back();
    for (const GroupId group : groups) {
      first[group] = end;
      end += num_chunks(catalogue.owned_by(node, group).size());
    }
  }
  begin_of_node_.push_back(end);
  sums_.resize(end);
}

std::span<double> ChunkSquares::of_node(int node) {
  const auto index = static_cast<std::size_t>(node);
  return std::span(sums_).subspan(begin_of_node_[index], begin_of_node_[index + 1] - begin_of_node_[index]);
}

std::span<double> ChunkSquares::of(int node, GroupId group) {
  return std::span(sums_).subspan(first_[static_cast<std::size_t>(node)].at(group),
                                  num_chunks(catalogue_.owned_by(node, group).size()));
}

double ChunkSquares::sum(GroupId group) {
  std::vector<double> in_order(num_chunks(catalogue_.weight_groups()[group].num_elements));
  for (int node = 0; node < catalogue_.place().num_nodes; ++node) {
    const std::uint64_t first_chunk = catalogue_.owned_by(node, group).begin / kChunkElements;
    std::ranges::copy(of(node, group), in_order.begin() + static_cast<std::ptrdiff_t>(first_chunk));
  }
  return add_in_order(in_order);
}

}  // namespace rp
