/* Saves a matrix whose rows are in two shards, and loads two of its columns.
 *   columns_c FOLDER */

#include <stdio.h>

#include "checkpoint/c/tessera_checkpoint.h"

static int Fail(void) {
  fprintf(stderr, "%s\n", tessera_error_message());
  return 1;
}

int main(int argc, char** argv) {
  const int64_t whole[] = {8, 4}, top_offset[] = {0, 0}, top_rows[] = {3, 4};
  const int64_t bottom_offset[] = {3, 0}, bottom_rows[] = {5, 4};
  const int64_t offset[] = {0, 1}, two_columns[] = {8, 2};
  float top[3 * 4], bottom[5 * 4], columns[8 * 2];
  tessera_folder* folder = NULL;
  tessera_checkpoint* checkpoint = NULL;
  tessera_state *rows = NULL, *part = NULL;
  if (argc != 2) return 2;

  for (int i = 0; i < 3 * 4; ++i) top[i] = (float)i;
  for (int i = 0; i < 5 * 4; ++i) bottom[i] = (float)(3 * 4 + i);
  if (tessera_folder_open(argv[1], TESSERA_CREATE, "", &folder) != TESSERA_OK ||
      tessera_state_create(&rows) != TESSERA_OK ||
      tessera_state_add_tensor(rows, "weight", TESSERA_WEIGHT, TESSERA_F32, 2, whole) !=
          TESSERA_OK ||
      tessera_state_add_shard(rows, top, 3 * 4, top_offset, top_rows, NULL, 0) != TESSERA_OK ||
      tessera_state_add_shard(rows, bottom, 5 * 4, bottom_offset, bottom_rows, NULL, 0) !=
          TESSERA_OK ||
      tessera_folder_save(folder, 100, rows, NULL, NULL) != TESSERA_OK) {
    return Fail();
  }

  if (tessera_folder_open_latest(folder, &checkpoint) != TESSERA_OK ||
      tessera_state_create(&part) != TESSERA_OK ||
      tessera_state_add_tensor(part, "weight", TESSERA_WEIGHT, TESSERA_F32, 2, whole) !=
          TESSERA_OK ||
      tessera_state_add_shard(part, columns, 8 * 2, offset, two_columns, NULL, 0) != TESSERA_OK ||
      tessera_checkpoint_load(checkpoint, part, NULL, NULL) != TESSERA_OK) {
    return Fail();
  }
  for (int i = 0; i < 8 * 2; ++i) printf("%g\n", columns[i]);
  tessera_state_free(rows);
  tessera_state_free(part);
  tessera_checkpoint_free(checkpoint);
  tessera_folder_free(folder);
  return 0;
}
