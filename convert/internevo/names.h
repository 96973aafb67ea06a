#ifndef TESSERA_CONVERT_INTERNEVO_NAMES_H_
#define TESSERA_CONVERT_INTERNEVO_NAMES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace tessera::ckpt::convert {

// A name in the file of a pipeline stage, which counts its layers from 0 on: "layers.1.ffn_norm";
// where the stage has several chunks of layers: "1.model.layers.0.ffn_norm".
struct InternEvoLocalName {
  int64_t chunk = 0;
  int64_t layer = -1;  // -1: the parameter is of no layer
  std::string before;  // "layers." or, of no layer, all of the name
  std::string after;   // ".ffn_norm"
};

InternEvoLocalName ParseInternEvoName(std::string_view name);

// The layers that each stage has, by which those of the whole model are counted: chunks are dealt
// out to the stages in turn.
class InternEvoLayers {
 public:
  void Add(int64_t stage, const InternEvoLocalName& name);

  // The number of chunks of a stage.
  int64_t chunks() const;

  // The name with the number of the layer in the whole model. DataLoss, naming chunk and stage,
  // where the stage's numbers leave one out.
  absl::StatusOr<std::string> GlobalName(int64_t stage, const InternEvoLocalName& name) const;

 private:
  std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> layers_;  // by chunk and stage
};

}  // namespace tessera::ckpt::convert

#endif  // TESSERA_CONVERT_INTERNEVO_NAMES_H_
