-- What keys and commands do with the item on the screen. Each returns whether there was something to act on.
local api = vim.api
local client = require('draftline.client')

local M = {}

local waiting = {} ---@type ('word'|'line')[] parts that were asked for while another one was on its way
local busy = false

local function current()
  local bufnr = api.nvim_get_current_buf()
  local backend = client.backend()
  return backend.current(bufnr), backend, bufnr
end

function M.accept()
  local offer, backend, bufnr = current()
  if not offer or not offer:accept() then
    return false
  end
  backend.hide(bufnr)
  return true
end

local function accept_part(part)
  if busy then
    table.insert(waiting, part)
    return true
  end
  local offer, backend = current()
  if not offer then
    return false
  end
  busy = true
  local sent = offer:accept_part(part, function(inserted, more)
    busy = false
    backend.accepted_part(offer, inserted and more)
    local following = table.remove(waiting, 1)
    if following and inserted and more then
      accept_part(following)
    else
      waiting = {}
    end
  end)
  busy = sent and busy
  return sent
end

function M.accept_word()
  return accept_part('word')
end

function M.accept_line()
  return accept_part('line')
end

function M.dismiss()
  local offer, backend, bufnr = current()
  if not offer then
    return false
  end
  offer:tell('draftline/didDismiss')
  backend.hide(bufnr)
  return true
end

local function cycle(count)
  local bufnr = api.nvim_get_current_buf()
  if #vim.lsp.get_clients({ name = 'draftline', bufnr = bufnr }) == 0 then
    return false
  end
  client.backend().cycle(bufnr, count)
  return true
end

function M.next()
  return cycle(1)
end

function M.previous()
  return cycle(-1)
end

return M
