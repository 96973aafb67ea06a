#include "layout/partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status CheckPartition(const Partition& partition, const Shape& global_shape) {
  const auto wrong = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("partition: ", why...));
  };
  const int dim = partition.dim;
  if (dim < -1 || dim >= static_cast<int>(global_shape.size())) {
    return wrong("dim ", dim, " of ", global_shape.size());
  }
  if (partition.sections < 1) return wrong(partition.sections, " sections");
  if (dim < 0 && partition.sections > 1) return wrong("sections of no dim");
  if (dim >= 0 && global_shape[dim] % partition.sections != 0) {
    return wrong(partition.sections, " sections do not divide the extent ", global_shape[dim],
                 " of dim ", dim);
  }
  if (partition.padded && (dim != 0 || partition.sections > 1)) {
    return wrong("padding of what is not rows cut in one section");
  }
  const Place& place = partition.place;
  if (place.layer < -1) return wrong("layer ", place.layer);
  if (place.layer >= 0 && (place.before_layers || place.after_layers)) {
    return wrong("in layer ", place.layer, " and at an end of the model");
  }
  return absl::OkStatus();
}

std::vector<Box> CutTensor(const Partition& partition, const Shape& global_shape, int64_t rows,
                           int part, int parts) {
  const int dim = partition.dim;
  std::vector<Box> boxes;
  if (dim < 0) {
    boxes.push_back(WholeBox(global_shape));
    return boxes;
  }
  const int64_t all = global_shape[dim] / partition.sections;
  const int64_t padded = partition.padded ? std::max(rows, all) : all;
  const int64_t begin = std::min(padded / parts * part + padded % parts * part / parts, all);
  const int64_t end =
      std::min(padded / parts * (part + 1) + padded % parts * (part + 1) / parts, all);
  for (int section = 0; section < partition.sections && begin < end; ++section) {
    Box box = WholeBox(global_shape);
    box.global_offset[dim] = section * all + begin;
    box.shape[dim] = end - begin;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

}  // namespace tessera
