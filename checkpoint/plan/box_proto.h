#ifndef TESSERA_CHECKPOINT_PLAN_BOX_PROTO_H_
#define TESSERA_CHECKPOINT_PLAN_BOX_PROTO_H_

// A box as ranks send it to each other, and back.

#include "checkpoint/plan/plan.pb.h"
#include "layout/box.h"

namespace tessera::ckpt {

// Precondition: `proto` is empty.
inline void ToProto(const Box& box, BoxProto& proto) {
  proto.mutable_offset()->Add(box.global_offset.begin(), box.global_offset.end());
  proto.mutable_shape()->Add(box.shape.begin(), box.shape.end());
}

inline Box FromProto(const BoxProto& proto) {
  return {{proto.offset().begin(), proto.offset().end()},
          {proto.shape().begin(), proto.shape().end()}};
}

}  // namespace tessera::ckpt

#endif  // TESSERA_CHECKPOINT_PLAN_BOX_PROTO_H_
