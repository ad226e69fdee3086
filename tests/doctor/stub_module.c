/* A libgtrain_cuda.so that needs what the real one needs and says what it was built for; ABI and CUDA are set by the build. */
#include "backend/backend.h"

#define TEXT(value)    TEXT_OF(value)
#define TEXT_OF(value) #value
#define NOTE           "abi=" TEXT(ABI) "\ncuda=" TEXT(CUDA) "\ncublas=13.1.0\ncudnn=9.14.0\ncudnn_least=9.0.0\narchitectures=80-real 90-real 100\n"

/* A note of somebody else's comes first, of an odd size. */
static const struct {
    uint32_t name_bytes, text_bytes, type;
    char name[4], text[8];
    uint32_t own_name_bytes, own_text_bytes, own_type;
    char own_name[8];
    char own_text[(sizeof NOTE + 3) & ~(size_t)3];
} notes
    __attribute__((section(".note.gtrain"), aligned(4), used)) = {4, 5, 1, "abc", "12345", sizeof "gtrain", sizeof NOTE, 1, "gtrain", NOTE};
