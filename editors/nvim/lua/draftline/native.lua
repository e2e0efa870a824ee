-- Neovim 0.12's own inline completion, and what it leaves out: parts of an item, shown and dismissed, asking by hand.
--
-- It tells nobody which item it shows, so the client's requests pass through here.
local api = vim.api
local Offer = require('draftline.offer')
local wanted = require('draftline.wanted')

local M = {}

local METHOD = 'textDocument/inlineCompletion'
local INVOKED = 1

local states = {} ---@type table<integer, {offers: draftline.Offer[], index: integer, by_hand: boolean}>

local function is_drawn(bufnr)
  local namespace = api.nvim_get_namespaces()['nvim.lsp.inline_completion']
  return namespace ~= nil and #api.nvim_buf_get_extmarks(bufnr, namespace, 0, -1, { limit = 1 }) > 0
end

local function tell_shown(bufnr)
  local offer = M.current(bufnr)
  if offer then
    offer:tell_shown()
  end
end

---Let the client's inline completion requests pass through here; once for each client.
local function listen(client)
  if client._draftline_listens then
    return
  end
  client._draftline_listens = true
  local request = client.request
  client.request = function(self, method, params, handler, bufnr)
    local state = states[bufnr]
    if method ~= METHOD or not state or not handler then
      return request(self, method, params, handler, bufnr)
    end
    if not wanted(bufnr) then
      return false
    end
    if state.by_hand then
      state.by_hand = false
      params.context.triggerKind = INVOKED
    end
    local tick = api.nvim_buf_get_changedtick(bufnr)
    return request(self, method, params, function(err, result, context)
      if api.nvim_buf_get_changedtick(bufnr) ~= tick then
        return -- typed on: the next request is under way
      end
      state.offers, state.index = {}, 1
      if not err and type(result) == 'table' then
        for _, item in ipairs(result.items or result) do
          local offer = Offer.new(client, bufnr, item)
          state.offers[#state.offers + 1] = offer
          -- Neovim draws and inserts CR as a character; its buffers hold no line ends.
          item.insertText = offer and offer.text or item.insertText
        end
      end
      handler(err, result, context)
      tell_shown(bufnr)
    end, bufnr)
  end
end

function M.attach(client, bufnr)
  listen(client)
  states[bufnr] = { offers = {}, index = 1, by_hand = false }
  vim.lsp.inline_completion.enable(true, { bufnr = bufnr })
end

function M.detach(bufnr)
  if states[bufnr] then
    states[bufnr] = nil
    if api.nvim_buf_is_valid(bufnr) then
      vim.lsp.inline_completion.enable(false, { bufnr = bufnr })
    end
  end
end

---@return draftline.Offer?
function M.current(bufnr)
  local state = states[bufnr]
  local offer = state and state.offers[state.index]
  return offer and is_drawn(bufnr) and offer:rest() and offer or nil
end

function M.hide(bufnr)
  if states[bufnr] then
    states[bufnr].offers = {}
    -- The way that it has to drop its item: accept it, and then don't.
    vim.lsp.inline_completion.get({ bufnr = bufnr, on_accept = function() end })
  end
end

---What is left stays on the screen as after typing, but Neovim can't draw it from another line on.
function M.accepted_part(offer, rest_is_left)
  local moved = api.nvim_win_get_cursor(0)[1] - 1 ~= offer.row
  if moved or not rest_is_left then
    M.hide(offer.bufnr)
  end
end

---Another item: of those that are there, else of those that the server makes when it is asked by hand.
function M.cycle(bufnr, count)
  local state = states[bufnr]
  if not state then
    return
  end
  if #state.offers > 1 and M.current(bufnr) then
    state.index = (state.index - 1 + count) % #state.offers + 1
    vim.lsp.inline_completion.select({ bufnr = bufnr, count = count })
    return tell_shown(bufnr)
  end
  state.by_hand = true
  -- There is no other way to have it ask.
  api.nvim_exec_autocmds('CursorMovedI', { group = 'nvim.lsp.inline_completion:' .. bufnr, buffer = bufnr })
end

return M
