#include "checkpoint/format/testing/test_manifest.h"

#include <cstdint>
#include <limits>
#include <string>

#include "checkpoint/format/manifest_codec.h"

namespace tessera::ckpt {
namespace {

void AddFile(const char* path, uint64_t size_bytes, Manifest& manifest) {
  DataFile& file = *manifest.add_files();
  file.set_path(path);
  file.set_size_bytes(size_bytes);
  file.set_chunk_bytes(4096);
  for (uint64_t at = 0; at < size_bytes; at += 4096) file.add_chunk_crc32c(0x1000 + at);
}

LogicalTensor& AddTensor(const char* name, TensorRole role, DType dtype, const Shape& shape,
                         Manifest& manifest) {
  LogicalTensor& tensor = *manifest.add_tensors();
  tensor.set_name(name);
  tensor.set_role(ToProto(role));
  tensor.set_dtype(ToProto(dtype));
  for (const int64_t extent : shape) tensor.add_global_shape(extent);
  tensor.mutable_digest()->set_lo(0x0123456789ABCDEF);
  tensor.mutable_digest()->set_hi(0xFEDCBA9876543210);
  return tensor;
}

void FillTrainer(TrainerState& trainer) {
  trainer.set_step(42);
  DataState& data = *trainer.mutable_data();
  data.set_consumed_samples(1344);
  data.set_epoch(1);
  data.set_fingerprint(0xC0FFEE);
  data.set_sequence_length(64);
  data.set_shuffle_seed(1234);
  data.set_samples_per_epoch(1000);
  data.set_complete_fingerprint(0xFEDCBA9876543210);
  ScheduleState& schedule = *trainer.mutable_schedule();
  schedule.set_name("cosine");
  schedule.set_learning_rate(3e-4);
  schedule.set_warmup_steps(10);
  schedule.set_decay_steps(100);
  trainer.mutable_rng()->set_algorithm("philox4x32-10");
  trainer.mutable_rng()->set_seed(1234);
  trainer.set_best_loss(std::numeric_limits<double>::infinity());
  trainer.set_last_loss(3.25);
  NumericsState& numerics = *trainer.mutable_numerics();
  numerics.set_instruction_set("avx2");
  numerics.set_library("oneDNN 2.6.3 avx512_core");
  numerics.set_products_hash(0x0123456789ABCDEF);
  numerics.set_loops_hash(0xFEDCBA9876543210);
  trainer.mutable_health()->set_state_is_finite(true);
  trainer.mutable_health()->set_loss_is_sane(true);
  trainer.mutable_health()->set_validation_loss(3.5);
  (*trainer.mutable_extra())["note"] = std::string("\x00\xFF", 2);
  (*trainer.mutable_extra())["other"] = "";
}

void FillOptimizer(OptimizerState& optimizer) {
  optimizer.set_algorithm("adamw");
  (*optimizer.add_groups()->mutable_options())["weight_decay"] = 0.1;
  (*optimizer.add_groups()->mutable_options())["weight_decay"] = 0;
  OptimizerParameter& parameter = *optimizer.add_parameters();
  parameter.set_parameter("wte.weight");
  parameter.set_group(1);
  (*parameter.mutable_states())["exp_avg"] = "optimizer.exp_avg.wte.weight";
  (*parameter.mutable_states())["exp_avg_sq"] = "optimizer.exp_avg_sq.wte.weight";
  (*parameter.mutable_foreign_names())["megatron"] = "module.embedding.word_embeddings.weight";
}

}  // namespace

Manifest FullManifest() {
  Manifest manifest;
  manifest.set_format_major(kFormatMajor);
  manifest.set_format_minor(kFormatMinor);
  manifest.mutable_producer()->set_program("tessera");
  manifest.mutable_producer()->set_version("0.1");
  manifest.mutable_producer()->set_created_unix_ms(1700000000000);
  TopologyProto& topology = *manifest.mutable_topology();
  topology.set_data_parallel(4);
  topology.set_tensor_parallel(2);
  topology.set_pipeline_parallel(2);
  topology.set_virtual_pipeline(1);
  topology.set_zero_stage(2);
  topology.set_rank_order("tp-dp-pp");
  topology.set_sequence_parallel(true);
  FillTrainer(*manifest.mutable_trainer());
  manifest.mutable_model()->set_architecture("gpt2");
  manifest.mutable_model()->set_text("num_layers: 2");
  FillOptimizer(*manifest.mutable_optimizer());
  AddFile("model-00001-of-00001.safetensors", 4096 + 96, manifest);
  AddFile("optimizer-00001-of-00001.safetensors", 4096 + 384, manifest);

  LogicalTensor& weight =
      AddTensor("wte.weight", TensorRole::kWeight, DType::kBF16, {6, 8}, manifest);
  weight.add_padded_shape(8);
  weight.add_padded_shape(8);
  PartitionProto& partition = *weight.mutable_partition();
  partition.set_dim(0);
  partition.set_sections(1);
  partition.set_padded(true);
  partition.set_before_layers(true);
  partition.set_after_layers(true);
  AddShard({{0, 0}, {3, 8}}, 0, 4096, weight);
  AddShard({{3, 0}, {3, 8}}, 0, 4096 + 48, weight);
  LogicalTensor& alias =
      AddTensor("lm_head.weight", TensorRole::kWeight, DType::kBF16, {6, 8}, manifest);
  alias.clear_digest();
  alias.set_alias_of("wte.weight");
  uint64_t at = 4096;
  for (const char* name : {"optimizer.exp_avg.wte.weight", "optimizer.exp_avg_sq.wte.weight"}) {
    LogicalTensor& moment =
        AddTensor(name, TensorRole::kOptimizerState, DType::kF32, {6, 8}, manifest);
    AddShard({{0, 0}, {6, 4}}, 1, at, moment);
    AddShard({{0, 4}, {6, 4}}, 1, at + 96, moment);
    at += 192;
  }
  return manifest;
}

}  // namespace tessera::ckpt
