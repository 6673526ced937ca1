#include "tests/common/random_floats.h"

namespace rp {

float NormalFloats::operator()(std::mt19937& generator) { return distribution_(generator); }

float UniformFloats::operator()(std::mt19937& generator) { return distribution_(generator); }

}  // namespace rp
