#ifndef TESSERA_CONVERT_TORCH_PLAIN_VALUES_H_
#define TESSERA_CONVERT_TORCH_PLAIN_VALUES_H_

#include <string>
#include <vector>

#include "convert/core/foreign_checkpoint.h"
#include "convert/pickle/budget.h"
#include "convert/pickle/value.h"

namespace tessera::ckpt::convert {

// Whether a value is a dict: one of Python's, or an OrderedDict or defaultdict.
bool IsTorchDict(const pickle::Value& value);

// Adds the numbers, truth values and texts in the dicts, lists and tuples of a pickle. `name` is
// that of the pickle's root, whose entries have it before their own; empty for none.
//
// What is shared by several objects is added for each, as long as the budget lasts; texts and names
// of more than kMaxPlainTextBytes are left out.
void AddPlainValues(const pickle::Pickle& contents, const std::string& name, pickle::Budget& budget,
                    std::vector<ForeignValue>& values);

inline constexpr size_t kMaxPlainTextBytes = 1024;

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_TORCH_PLAIN_VALUES_H_
