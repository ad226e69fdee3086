# gtrain_embed_file(timeline_page.html gt__timeline_page memory/timeline_page.h)
#
# A header with the file's bytes and a NUL as `static const unsigned char <symbol>[]`, under gtrain_embedded/ of the build folder. Done when
# configuring; a change of the file configures again.
function(gtrain_embed_file file symbol header)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${file} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n    " bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gtrain_embedded/${header} @ONLY
        CONTENT "/* Made from ${file}. */\nstatic const unsigned char ${symbol}[] = {\n    @bytes@0x00,\n};\n")
endfunction()
