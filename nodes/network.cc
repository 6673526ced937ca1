#include "nodes/network.h"

namespace rp {

const char* message_kind_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kGradient: return "gradient";
    case MessageKind::kWeights: return "weights";
    case MessageKind::kSquares: return "sums of squares";
    case MessageKind::kLosses: return "losses";
  }
  return "";
}

}  // namespace rp
