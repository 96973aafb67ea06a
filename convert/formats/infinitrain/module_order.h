#ifndef TESSERA_CONVERT_FORMATS_INFINITRAIN_MODULE_ORDER_H_
#define TESSERA_CONVERT_FORMATS_INFINITRAIN_MODULE_ORDER_H_

#include <optional>
#include <string>
#include <vector>

namespace tessera::ckpt::convert {

// Returns the names of a model's parameters in the order of InfiniTrain's Module::Parameters(), by
// which its optimizers number their states. `stored` are the names in the rank's model.ckpt, in
// the order of the file. A head that is tied to the embedding has its own place in the result.
//
// The program keeps modules and tensors in std::unordered_map, so its order depends on the C++
// library. This function builds the same tables, in the order in which the program does. The order
// of `stored`, which comes from these tables, too, proves that they are the same. Returns nullopt
// if it does not: the program was built with another library, or has other modules. Pure.
std::optional<std::vector<std::string>> OrderInfiniTrainParameters(
    const std::vector<std::string>& stored);

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_FORMATS_INFINITRAIN_MODULE_ORDER_H_
