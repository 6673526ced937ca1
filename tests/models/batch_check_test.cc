#include "models/batch_check.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/common/expect_refusal.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

constexpr std::int64_t kVocabulary = 61;

CallContents call() {
  const at::Tensor ids = at::arange(12, at::kLong).view({3, 4}), labels = ids.clone();
  labels[0][3] = -100;
  labels[2][0] = kVocabulary - 1;
  return {{ids}, "causal_lm_loss", {labels, at::scalar_tensor(11.0)}};
}

void expect_refused(const std::vector<std::string>& parts, const CallContents& contents) {
  expect_error(ExitCode::kUserError, parts, [&] { check_batch(kVocabulary, 0, contents); });
}

TEST(BatchCheck, AcceptsWhatIsInTheVocabularyAndWhatIsNotTrained) {
  check_batch(kVocabulary, 0, call());
  check_batch(kVocabulary, 0, {call().inputs, "", {}});
  check_batch(kVocabulary, 0, {{}, "", {}});
}

TEST(BatchCheck, NamesTheFirstWrongTokenAndItsPlace) {
  for (const std::int64_t id : {kVocabulary, std::int64_t{-1}, std::int64_t{-100}, std::int64_t{1} << 40}) {
    CallContents wrong = call();
    wrong.inputs[0][1][2] = id;
    wrong.inputs[0][2][0] = 1000;
    expect_refused({"token id " + std::to_string(id) + " of sequence 1, position 2,", "vocabulary of 61"}, wrong);
    // The same for a view whose elements are not contiguous.
    expect_refused({"of sequence 2, position 1,"}, {{wrong.inputs[0].narrow(0, 0, 2).t()}, "", {}});
  }
}

TEST(BatchCheck, NamesTheFirstWrongLabelAndItsPlace) {
  for (const std::int64_t label : {kVocabulary, std::int64_t{-1}, std::int64_t{-99}}) {
    CallContents wrong = call();
    wrong.arguments[0][2][3] = label;
    expect_refused({"label " + std::to_string(label) + " of sequence 2, position 3,", "neither -100 (not trained) nor"},
                   wrong);
    // The meaning of another loss's arguments is unknown, so they are not checked.
    wrong.loss = "mine";
    check_batch(kVocabulary, 0, wrong);
  }
}

TEST(BatchCheck, RefusesALossThatCapsLogitsOtherwiseThanTheModel) {
  CallContents contents = call();
  expect_error(ExitCode::kUserError, {"caps its logits at 30", "causal_lm_loss_settings()"},
               [&] { check_batch(kVocabulary, 30, contents); });
  contents.loss = causal_lm_loss({.logit_softcap = 300}).name;
  expect_error(ExitCode::kUserError, {"caps its logits at 30", "logit_softcap=300"},
               [&] { check_batch(kVocabulary, 30, contents); });
  expect_refused({"does not cap its logits"}, contents);
  contents.loss = causal_lm_loss({.logit_softcap = 30, .z_loss = 1e-4}).name;
  check_batch(kVocabulary, 30, contents);
  contents.loss = "mine";
  check_batch(kVocabulary, 30, contents);
}

TEST(BatchCheck, RefusesADivisorThatIsNotPositive) {
  for (const double divisor : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    CallContents wrong = call();
    wrong.arguments[1] = at::scalar_tensor(divisor);
    expect_refused({"the divisor is"}, wrong);
  }
}

TEST(BatchCheck, RefusesDocumentsThatDoNotFitTheirSequences) {
  CallContents packed = call();
  packed.inputs.push_back(at::tensor({1, 3, 4, 0, 2, 0}, at::kLong).view({3, 2}));
  check_batch(kVocabulary, 0, packed);
  packed.inputs[1][1][1] = 1;
  expect_refused({"document 1 of sequence 1 has length 1", "0 of the sequence's 4 positions"}, packed);
  packed.inputs[1] = at::zeros({2, 2}, at::kLong);
  expect_refused({"second input", "[3 sequences, documents]"}, packed);
}

}  // namespace
}  // namespace rp::models
