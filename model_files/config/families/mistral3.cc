// Mistral 3: a Mistral (Small 3.1 and later) or a Ministral 3 with a vision part.
#include "model_files/config/families/family.h"

namespace rp {

constexpr Wrapper kMistral3Wrapper{.model_type = "mistral3", .text_type = "mistral", .head_in_memory = {}};

}  // namespace rp
