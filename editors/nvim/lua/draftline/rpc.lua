-- Calls of a client that differ between Neovim 0.10 and later, and the text units of the protocol.
local M = {}

local METHODS = vim.fn.has('nvim-0.11') == 1

---@return integer? id of the request, nil when it wasn't sent
function M.request(client, method, params, handler, bufnr)
  local sent, id
  if METHODS then
    sent, id = client:request(method, params, handler, bufnr)
  else
    sent, id = client.request(method, params, handler, bufnr)
  end
  return sent and id or nil
end

function M.notify(client, method, params)
  if METHODS then
    client:notify(method, params)
  else
    client.notify(method, params)
  end
end

function M.cancel(client, id)
  if METHODS then
    client:cancel_request(id)
  else
    client.cancel_request(id)
  end
end

function M.stop(client)
  if METHODS then
    client:stop()
  else
    client.stop()
  end
end

---The byte in `line` at which a position's `character` stands.
function M.byte_of(line, character, encoding)
  if encoding == 'utf-8' then
    return math.min(character, #line)
  elseif METHODS then
    return vim.str_byteindex(line, encoding, character, false)
  end
  local found, byte = pcall(vim.str_byteindex, line, character, encoding == 'utf-16')
  return found and byte or #line
end

---The UTF-16 units of a text.
function M.utf16_length(text)
  if METHODS then
    return vim.str_utfindex(text, 'utf-16')
  end
  return (select(2, vim.str_utfindex(text)))
end

function M.position(bufnr, client)
  local cursor = vim.api.nvim_win_get_cursor(0)
  local line = vim.api.nvim_buf_get_lines(bufnr, cursor[1] - 1, cursor[1], false)[1] or ''
  local before = line:sub(1, cursor[2])
  local character
  if client.offset_encoding == 'utf-8' then
    character = #before
  elseif METHODS then
    character = vim.str_utfindex(before, client.offset_encoding)
  else
    local points, units = vim.str_utfindex(before)
    character = client.offset_encoding == 'utf-16' and units or points
  end
  return { line = cursor[1] - 1, character = character }
end

return M
