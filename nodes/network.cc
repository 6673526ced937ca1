#include "nodes/network.h"

namespace rp {

const char* node_message_name(NodeMessageKind kind) {
  switch (kind) {
    case NodeMessageKind::kGradient: return "gradient";
    case NodeMessageKind::kWeights: return "weights";
    case NodeMessageKind::kSquares: return "sums of squares";
    case NodeMessageKind::kLosses: return "losses";
  }
  return "";
}

}  // namespace rp
