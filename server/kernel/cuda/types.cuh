// What the host hands to a launch: the instructions with their matrices, vectors and buffers.
//
// server/kernel/lower.py writes these structs; fields of Instruction and Launch have 8 bytes each, in this order. The
// model's dimensions are constants that server/kernel/source.py puts before this text: HIDDEN, FFN, VOCAB, HEADS,
// KV_HEADS, HEAD_DIM, ROPE_DIMS, ROPE_BASE, KEY_HEADS, VALUE_HEADS, STATE, CONV_TAPS, CONV_CHANNELS, EPS, PARTS (parts
// of a key head's context at most), ROW_TILES (1: up to 8 rows, 2: up to 16), HAS_Q4_K ... (types of matrices in the
// file), ARCH, STAGE_BYTES, STAGES (of the ring of weights), AREA_BYTES (of activations), TIMED (timestamps).

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

constexpr u32 MAX_ROWS = 16, RING = 32, BLOCK = 32, KV_GRANULE = 64;
constexpr u32 MATH_WARPS = 12, EPILOGUE_WARPS = 2, WORKERS = 32 * MATH_WARPS;
// Warps 0..11 multiply (and are the workers of the instructions that stream nothing), 12 and 13 finish outputs, 14 loads
// activations and waits for the grid, 15 streams weights. So each of an SM's four schedulers has three math warps.
constexpr u32 LOADER_WARP = 14, PRODUCER_WARP = 15, THREADS = 16 * 32;

enum Kind : u64 { EMBED, MTP_INPUT, PROJECT, RESIDUAL, GATE_UP, HEAD, DELTA_RULE, ATTENTION, ATTENTION_REDUCE, VERIFY };
enum RowsKind : u64 { ROWS_VERIFY, ROWS_BEHIND, ROWS_ONE };
enum Type : u64 { F32, F16, BF16, Q8_0, Q4_K, Q5_K, Q6_K };
enum Count { LENGTH, FOLD, BEHIND_COUNT, EXTERNAL };

// Activations as int8: 32 values of a row share a scale. values [blocks][rows][32], where `rows` is the instruction's own
// number of rows; scales and sums [blocks][COLUMNS], of which the first `rows` are in use: the inner loop reads them at
// places that don't depend on it. In a block, value k stands at place(k). A sum is scale * (sum of the 32 int8), as two
// bfloat16: high part in the low 16 bits, what it left in the high 16 bits. Where there is a second plane, its values
// (over 254) are in the sum too.
struct Int8Rows {
  i8* values;
  float* scales;
  u32* sums;
};

// Matrices of the same shape whose groups of rows alternate: one, or gate and up.
struct Strip {
  const u8* tiles[2];  // of each matrix: [group][column tile][row tile]
  u64 matrices;
  u64 rows;       // outputs of each matrix; the last group may have fewer than it has room for
  float* target;  // PROJECT: outputs go to target[row * stride + column + output]
  u64 stride;
  u64 column;
  u64 ring;       // PROJECT: the row is the slot of the position
};

// Consecutive tiles of one matrix in one group, in 16 bytes; see Portion in portions.cuh and server/kernel/portions.py.
struct alignas(16) PackedPortion { u32 words[4]; };

// The items of one SM; of weight phases its portions.
struct Range {
  u32 start, stop;
};

struct Instruction {
  u64 kind;
  u64 rows_kind;
  u64 rows_limit;
  const Range* ranges;  // [SMs]
  // Weight phases.
  const PackedPortion* portions;
  Strip strip[4];
  u64 blocks;           // of 32 columns in the input
  Int8Rows input;
  const i8* input_low;  // a second plane (HEAD of the trunk), scales over 254; or null
  const float* squares; // [rows][blocks] sums of x^2; null without a norm
  u64 segments;         // parts of a row with a norm of their own; 0 without a norm
  u64 segment_width;    // columns of a segment
  // Outputs of RESIDUAL, GATE_UP, EMBED, MTP_INPUT, DELTA_RULE, ATTENTION_REDUCE as the next matrix' input.
  Int8Rows output;
  i8* output_low;
  float* output_squares;  // [rows][blocks of the output]
  float* x;               // residual [rows][HIDDEN]
  u64 add;                // RESIDUAL: adds to x
  const float* norm;      // RESIDUAL, EMBED: the next norm's weight [HIDDEN]; HEAD: the norm before it
  const float* norm2;     // MTP_INPUT: norm is enorm's, norm2 is hnorm's weight
  // HEAD: x, norm, squares -> hidden rows [rows][HIDDEN]; best [rows][SMs][2] (value, token); logits or null.
  float* hidden;
  float* best;
  float* logits;          // [rows][VOCAB]
  const i32* draft_ids;   // token of each row of a draft head; null: the row itself
  // EMBED, MTP_INPUT: raw rows of the embedding, as in the file.
  const u8* table;
  u64 table_type;
  u64 table_row_bytes;
  u64 step;               // MTP_INPUT, ATTENTION: step of the draft chain
  u64 drafts;             // EMBED: how many the chain made
  const float* draft_best; // MTP_INPUT of step > 0: the step before; EMBED: step 0's; [1][SMs][2], one after another
  u64 draft_best_stride;   // floats between the steps' results
  i32* tokens;            // [rows] EMBED writes, VERIFY reads
  // DELTA_RULE
  float* memory;          // [VALUE_HEADS][STATE value][STATE key]
  float* conv;            // ring [RING][CONV_CHANNELS]
  float* keys;            // ring [RING][KEY_HEADS][STATE]
  float* deltas;          // ring [RING][VALUE_HEADS][STATE]
  float* decays;          // ring [RING][VALUE_HEADS]
  const float* z;         // [rows][VALUE_HEADS * STATE]
  const float* gates;     // [rows][beta of VALUE_HEADS, alpha of VALUE_HEADS]
  const float* taps;      // [CONV_CHANNELS][CONV_TAPS]
  const float* log_decay; // ssm_a [VALUE_HEADS]
  const float* time_bias; // [VALUE_HEADS]
  const float* gate_norm; // ssm_norm [STATE]
  // ATTENTION, ATTENTION_REDUCE
  const float* qkv;       // [rows][(query, gate) of each head, keys, values]
  u16* cache_k;           // [KV_HEADS][capacity][HEAD_DIM] half
  u16* cache_v;
  u64 capacity;
  u64 queries;            // rows that attend
  float* parts;           // [rows][HEADS][PARTS][HEAD_DIM]
  float* stats;           // [rows][HEADS][PARTS][2]: greatest score, sum of weights
  const float* q_norm;    // [HEAD_DIM]
  const float* k_norm;
};

struct Launch {
  const Instruction* instructions;
  u64 count;
  i32* counts;      // LENGTH, FOLD, BEHIND_COUNT, EXTERNAL
  i32* accepted;    // [MAX_ROWS]
  i32* given;       // [MAX_ROWS]
  float* hidden;    // [MAX_ROWS][HIDDEN], the trunk's
  float* mtp_hidden; // [HIDDEN]
  float* sums;      // [SMs][2][MAX_ROWS][32], of shared groups
  u32* handed;      // [SMs], 32 words apart: the last instruction for which this SM has handed its sums on
  u32* barrier;     // arrivals of SMs, never reset
  u64 epoch;        // instructions of all launches before this one
  u32* fault;       // set when the launch is given up: see Where
  u64* times;       // TIMED: [count][SMs][STAMPS] nanoseconds
};
